"""The synchronous half of the SDK is made from the asynchronous one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from docs import write_sync_client
from docs.write_sync_client import NOTE, SOURCE, TARGET


def test_it_is_in_step() -> None:
    assert write_sync_client.differing() == [], "run `make format`"
    assert {path.name for path in TARGET.glob("*.py")} == {path.name for path in SOURCE.glob("*.py")}


def test_each_file_says_where_it_comes_from() -> None:
    assert all(path.read_text().startswith(NOTE) for path in TARGET.glob("*.py"))


def test_nothing_asynchronous_is_left_in_it() -> None:
    for path in TARGET.glob("*.py"):
        text = path.read_text().removeprefix(NOTE)
        assert not [word for word in ("async", "Async", "await", "__aenter__") if word in text], path.name


@pytest.fixture
def halves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A copy of both halves, in place of the real ones."""
    source, target = tmp_path / "_async", tmp_path / "_sync"
    shutil.copytree(SOURCE, source)
    shutil.copytree(TARGET, target)
    monkeypatch.setattr(write_sync_client, "SOURCE", source)
    monkeypatch.setattr(write_sync_client, "TARGET", target)
    return source, target


def test_a_change_of_either_half_alone_is_noticed_and_mended(halves: tuple[Path, Path]) -> None:
    source, target = halves
    (target / "job.py").write_text((target / "job.py").read_text() + "# by hand\n")
    (target / "spare.py").write_text("")
    (source / "client.py").write_text((source / "client.py").read_text().replace("async def close", "async def shut"))

    assert write_sync_client.differing() == ["client.py", "job.py", "spare.py"]

    write_sync_client.write()
    assert write_sync_client.differing() == []
    assert "    def shut(self)" in (target / "client.py").read_text()
