"""The whole suite here runs with marked secrets, and all that its processes wrote is searched for them at the end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.http_rig import MARK


@pytest.fixture(scope="session", autouse=True)
def _secrets_are_written_nowhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Commands, variables and keys are marked by `http_rig.Replica`, whose problems are kept beside its logs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONCEBOX_SECRET", f"{MARK}-signing-secret")
        patch.setenv("ACCEPTANCE_TRACES", "console")
        yield
    places = [place for ending in ("out", "err") for place in tmp_path_factory.getbasetemp().rglob(f"*.{ending}")]
    told = [f"{place}: {found}" for place in places if (found := marked(place))]
    assert not told, "\n".join(told)


def marked(place: Path) -> str:
    """What stands around the first mark in a file; empty where there is none."""
    text = place.read_text(errors="replace")
    at = text.upper().find(MARK.upper())
    return text[max(0, at - 200) : at + 100] if at >= 0 else ""
