"""What is let through is what Kubernetes takes, by its own rules (`k8s.io/apimachinery/pkg/util/validation`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service import settings
from service.core.model import validation
from service.errors import InvalidRequest

ODD = "aZ09-_./:@= \n\t\x7fé\u200b$"
"""Letters of what is nearly right."""
NEARLY = st.text(alphabet=ODD, max_size=12) | st.text(max_size=8) | st.from_regex(r"[a-z0-9./_-]{1,70}", fullmatch=True)


def taken(check: Callable[[], Any]) -> bool:
    try:
        check()
    except (InvalidRequest, settings.SettingsError):
        return False
    return True


def is_qualified_name(key: str) -> bool:
    """`IsQualifiedName`."""
    parts = key.split("/")
    if len(parts) > 2 or (len(parts) == 2 and not is_subdomain(parts[0])):
        return False
    return (
        1 <= len(parts[-1]) <= 63 and re.fullmatch(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]", parts[-1]) is not None
    )


def is_subdomain(text: str) -> bool:
    """`IsDNS1123Subdomain`."""
    label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    return len(text) <= 253 and re.fullmatch(rf"{label}(\.{label})*", text) is not None


def is_label_value(text: str) -> bool:
    """`IsValidLabelValue`."""
    return len(text) <= 63 and re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", text) is not None


def is_variable(name: str) -> bool:
    """`IsRelaxedEnvVarName`."""
    return bool(name) and all(" " <= char <= "~" and char != "=" for char in name)


@given(NEARLY, NEARLY)
def test_labels(key: str, value: str) -> None:
    if taken(lambda: validation.metadata({key: value})):
        kept = validation.metadata({key: value})
        assert all(is_qualified_name(each) and is_label_value(kept[each]) for each in kept)


@given(NEARLY)
def test_names_of_variables(name: str) -> None:
    if taken(lambda: validation.sandbox_env({name: "x"}, reserved=lambda _: False)):
        assert is_variable(name)


@given(NEARLY)
def test_images_have_no_white_space_at_their_ends_and_are_not_empty(image: str) -> None:
    """Kubernetes looks at no more; what the node's runtime can't parse ends as `InvalidImageName`, in a minute."""
    if taken(lambda: validation.image(image)):
        assert image == image.strip() != ""
        assert image.isascii()


@given(NEARLY)
def test_the_part_of_a_claim_that_an_owner_gets_is_a_path_below_it(owner: str) -> None:
    if taken(lambda: validation.owner(owner)):
        path = f"{owner}/workspace"
        assert not path.startswith("/")
        assert ".." not in path.split("/")


@given(NEARLY)
def test_paths_that_owners_directories_are_mounted_at(mount: str) -> None:
    asked = {"ONCEBOX_WORKSPACE_DIRS": f"work:/{mount}"}
    if taken(lambda: settings.load(asked)):
        for _, path in settings.load(asked).workspace_dirs:
            assert path.startswith("/")
            assert ":" not in path
            assert ".." not in path.split("/")


@given(NEARLY)
def test_names_of_claims(name: str) -> None:
    if taken(lambda: settings.load({"ONCEBOX_VOLUME": f"pvc:{name}"})):
        assert is_subdomain(name)


@pytest.mark.parametrize("name", ["a.-b", "a..b", "-a", "a" * 254, "A"])
def test_what_is_no_name_of_a_claim_is_refused(name: str) -> None:
    assert not taken(lambda: settings.load({"ONCEBOX_VOLUME": f"pvc:{name}"}))
