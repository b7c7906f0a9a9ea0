"""Where ``oncebox cp`` copies to, as ``docker cp`` has it."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.commands.cp import Place, local_target, place, target_in_sandbox
from service.cli.problems import Trouble


@pytest.mark.parametrize(
    ("text", "sandbox_id", "path"),
    [
        ("abc:/work/x", "abc", "/work/x"),
        ("abc:x", "abc", "x"),
        ("abc:", "abc", "."),
        ("abc:a:b\nc", "abc", "a:b\nc"),
        ("./abc:x", None, "./abc:x"),
        ("/abc:x", None, "/abc:x"),
        ("../a:b", None, "../a:b"),
        ("dir/a:b", None, "dir/a:b"),
        ("file", None, "file"),
        ("-", None, "-"),
    ],
)
def test_what_names_a_sandbox(text: str, sandbox_id: str | None, path: str) -> None:
    assert place(text) == Place(sandbox_id, path)


@pytest.mark.parametrize(
    ("source", "is_directory", "wanted", "there", "target"),
    [
        ("a/f", False, "/w", None, "/w"),
        ("a/f", False, "/w", False, "/w"),
        ("a/f", False, "/w", True, "/w/f"),
        ("a/f", False, "/w/", True, "/w/f"),
        ("a/f", False, ".", True, "./f"),
        ("a/f", False, "/w/", None, None),
        ("a/d", True, "/w", None, "/w"),
        ("a/d", True, "/w/", None, "/w/"),
        ("a/d", True, "/w", True, "/w/d"),
        ("a/d/", True, "/w", True, "/w/d"),
        ("a/d/.", True, "/w", True, "/w"),
        ("a/d", True, "/w", False, None),
    ],
)
def test_where_it_goes_in_a_sandbox(
    source: str, is_directory: bool, wanted: str, there: bool | None, target: str | None
) -> None:
    sides = Place(None, source), Place("id", wanted)
    if target is None:
        with pytest.raises(Trouble):
            target_in_sandbox(*sides, is_directory, there)
    else:
        assert target_in_sandbox(*sides, is_directory, there) == target


@pytest.mark.parametrize(
    ("source", "is_directory", "wanted", "target"),
    [
        ("/w/f", False, "new", "new"),
        ("/w/f", False, "file", "file"),
        ("/w/f", False, "dir", "dir/f"),
        ("/w/f", False, ".", "f"),
        ("/w/f", False, "new/", None),
        ("/w/d", True, "new", "new"),
        ("/w/d", True, "dir", "dir/d"),
        ("/w/d/", True, "dir", "dir/d"),
        ("/w/d/.", True, "dir", "dir"),
        ("/w/d", True, "file", None),
    ],
)
def test_where_it_goes_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    is_directory: bool,
    wanted: str,
    target: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("dir").mkdir()
    Path("file").touch()
    sides = Place("id", source), Place(None, wanted)
    if target is None:
        with pytest.raises(Trouble):
            local_target(*sides, is_directory=is_directory)
    else:
        assert local_target(*sides, is_directory=is_directory) == Path(target)
