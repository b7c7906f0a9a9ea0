"""What a request must be like: each refusal names the field."""

from __future__ import annotations

import pytest

from service.core import rules
from service.errors import InvalidRequest, PayloadTooLarge
from service.messages import MAX_COMMAND


@pytest.mark.parametrize("owner", ["alice", "a", "team-1_x.y@z", "a" * 128, "..a", "...", "-"])
def test_an_owner_is_one_path_segment(owner: str) -> None:
    assert rules.owner(owner) == owner


@pytest.mark.parametrize("owner", ["", ".", "..", "a/b", "a b", "a\n", "a\0", "é", "a" * 129, "%2e%2e", "a\\b"])
def test_other_owners_are_refused(owner: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        rules.owner(owner)
    assert [error.field for error in refused.value.errors] == ["workspace_owner"]


@pytest.mark.parametrize(
    "labels",
    [{"k": ""}, {"k": "v"}, {"a.b/c": "1-2_3.4"}, {"k" * 63: "v" * 63}, {"x.y/" + "k" * 63: "v"}, {}],
)
def test_metadata_are_labels(labels: dict[str, str]) -> None:
    assert rules.metadata(labels) == labels


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k", "-a"), ("k", "a-"), ("k", "a b"), ("k", "v" * 64), ("", "v"), ("k" * 64, "v"), ("-k", "v"),
        ("A_/k", "v"), ("a//k", "v"), ("/k", "v"), ("k/", "v"), ("opensandbox.io/x", "v"), ("k", "é"), ("k\n", "v"),
    ],
)  # fmt: skip
def test_what_is_no_label_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        rules.metadata({key: value})
    assert refused.value.errors[0].field.startswith("metadata.")


@pytest.mark.parametrize("key", ["oncebox.io/idem", "OncEbox.IO/tenant", " oncebox.io/x", "ONCEBOX.IO/generation"])
def test_reserved_keys_are_dropped_in_any_letter_case(key: str) -> None:
    assert rules.metadata({key: "v", "mine": "1"}) == {"mine": "1"}


@pytest.mark.parametrize("command", ["", " ", "\n\t"])
def test_an_empty_command_is_refused(command: str) -> None:
    with pytest.raises(InvalidRequest):
        rules.command(command)


@pytest.mark.parametrize("command", ["a\0b", "\ud800"])
def test_a_command_that_no_shell_can_take_is_refused(command: str) -> None:
    with pytest.raises(InvalidRequest):
        rules.command(command)


def test_a_command_over_its_limit_is_too_large_in_bytes() -> None:
    assert rules.command("x" * MAX_COMMAND)
    with pytest.raises(PayloadTooLarge):
        rules.command("é" * (MAX_COMMAND // 2 + 1))


@pytest.mark.parametrize(
    "env", [{"": "v"}, {"A=B": "v"}, {"A\0": "v"}, {"A": "\0"}, {"OURS": "v"}, {"A": "x" * (MAX_COMMAND + 1)}]
)
def test_an_environment_that_can_not_be_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        rules.env(env, reserved="OURS".__eq__)
