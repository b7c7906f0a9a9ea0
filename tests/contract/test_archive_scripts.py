"""Directories in and out as tar, in each shell that is here: all or nothing, or name by name, and nothing outside."""

from __future__ import annotations

import io
import os
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.core.files import scripts
from service.core.files.tar import repack
from tests.contract.file_scripts_rig import Place, packed, shells
from tests.unit.core.files.test_tar import link

DIR: dict[str, Any] = {"type": tarfile.DIRTYPE}
Member = tuple[str, dict[str, Any], bytes]
NOBODY = 65534


@pytest.fixture(params=shells())
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="oncebox-test-", dir="/tmp") as folder:  # no directory above it is private
        yield Place(request.param, Path(folder))


def tree(top: Path) -> dict[str, tuple[int, bytes | str | None]]:
    """What is there: mode, and content or where a link leads."""
    found: dict[str, tuple[int, bytes | str | None]] = {}
    for path in top.rglob("*"):
        about = path.lstat()
        if stat.S_ISLNK(about.st_mode):
            found[str(path.relative_to(top))] = (0, os.readlink(path))
        else:
            content = path.read_bytes() if stat.S_ISREG(about.st_mode) else None
            found[str(path.relative_to(top))] = (stat.S_IMODE(about.st_mode), content)
    return found


NAME = "it's\n$X \udcff"
SOME: list[Member] = [
    ("a", {"mode": 0o4751, "mtime": 1_000_000}, b"one"),
    ("d", {**DIR, "mode": 0o2700}, b""), ("d/e", {**DIR, "mode": 0o755}, b""), (f"d/{NAME}", {"mode": 0o600}, b"two"),
    ("d/e/f", {"mode": 0o644}, b""), link("d/e/up", "../../a"), link("gone", "nowhere"), ("none", {"mode": 0}, b"x"),
    ("-rf", {"mode": 0o644}, b""), (".hidden", {"mode": 0o644}, b""),
]  # fmt: skip
THERE = {
    "a": (0o4751, b"one"), "d": (0o2700, None), f"d/{NAME}": (0o600, b"two"), "d/e": (0o755, None),
    "d/e/f": (0o644, b""), "d/e/up": (0, "../../a"), "gone": (0, "nowhere"), "none": (0, b"x"), "-rf": (0o644, b""),
    ".hidden": (0o644, b""),
}  # fmt: skip


def test_into_a_directory_that_is_not_there_everything_comes_at_once(place: Place) -> None:
    said = place.unpack("x/new", packed(*SOME), root="2750")
    assert said["end"] == "ok"
    assert tree(place.work / "x/new") == THERE
    assert stat.S_IMODE((place.work / "x/new").stat().st_mode) == 0o2750
    assert (place.work / "x/new/a").stat().st_mtime == 1_000_000
    assert place.leftovers() == []


def test_into_one_that_is_there_name_by_name(place: Place) -> None:
    top = place.work / "d0"
    (top / "d/e").mkdir(parents=True)
    (top / "d").chmod(0o711)
    (top / "d/e/f").write_text("old")
    (top / "d/kept").write_text("kept")
    (top / "a").symlink_to("/etc/hostname")
    assert place.unpack("d0", packed(*SOME))["end"] == "ok"
    assert tree(top) == {**THERE, "d": (0o711, None), "d/kept": (0o644, b"kept")}
    assert place.unpack("d0", packed(*SOME))["end"] == "ok"
    assert place.unpack("d0/.", packed())["end"] == "ok"
    assert place.leftovers() == []


def test_what_came_out_goes_in_again_the_same(place: Place) -> None:
    place.unpack("one", packed(*SOME), root="755")
    out = io.BytesIO()
    found = repack(iter([place.pack("one")]), out.write, most=1 << 30)
    assert found.mode == 0o755
    assert place.unpack("two", out.getvalue(), root="755")["end"] == "ok"
    assert tree(place.work / "two") == THERE
    assert place.leftovers() == []


@pytest.mark.parametrize(
    ("made", "members", "reason"),
    [
        ("ln -s /tmp d", [("d/x", {}, b"x")], "outside"),
        ("ln -s .. d", [("d/x", {}, b"x")], "outside"),
        ("mkdir e; ln -s ../.. e/f", [("e/f/x", {}, b"x"), ("g", {}, b"")], "outside"),
        ("mkdir d", [("d", {}, b"x")], "isdir"),
        (":>d", [("d/x", {}, b"x")], "notdir"),
        ("ln -s gone d", [("d/x", {}, b"x")], "notdir"),
    ],
)
def test_what_is_there_and_in_the_way_is_found_before_anything_is_put(
    place: Place, made: str, members: list[tuple[str, dict[str, Any], bytes]], reason: str
) -> None:
    top = place.work / "top"
    top.mkdir()
    subprocess.run(["sh", "-c", made], cwd=top, check=True)
    before = tree(top)
    assert place.unpack("top", packed(("first", {}, b"x"), *members))["end"] == reason
    assert tree(top) == before
    assert place.leftovers() == []


def test_a_link_that_stays_inside_is_followed_to_a_directory(place: Place) -> None:
    (place.work / "top/real").mkdir(parents=True)
    (place.work / "top/way").symlink_to("real")
    assert place.unpack("top", packed(("way/x", {}, b"x")))["end"] == "ok"
    assert (place.work / "top/real/x").read_bytes() == b"x"
    assert (place.work / "top/way").is_symlink()


def test_the_fences_are_neither_unpacked_into_nor_packed(place: Place) -> None:
    (place.fences / "boot").write_text("mark")
    assert place.unpack(str(place.fences), packed(("x", {}, b"")))["end"] == "fence"
    assert place.unpack(str(place.root.parent), packed(("fences/x", {}, b"")))["end"] == "fence"
    (place.work / "f").write_text("x")
    (place.work / f"{scripts.UPLOAD}{'0' * 32}").mkdir()
    token = "ab" * 16
    said = place.run(scripts.PACK, str(place.root.parent), token=token)
    if said["end"] == "tool":  # this tar leaves nothing out
        assert said["tool"] == "tar --exclude"
        return
    with tarfile.open(fileobj=io.BytesIO(place.pack(str(place.root.parent)))) as tar:
        names = tar.getnames()
    assert "./root/work/f" in names
    assert not [name for name in names if "fences" in name or scripts.UPLOAD in name]


def test_a_tar_that_is_cut_short_puts_nothing(place: Place) -> None:
    whole = packed(("a", {}, b"x" * 100_000), ("b", {}, b"y"))
    said = place.unpack("new", whole[:50_000])
    assert said["end"] != "ok"
    assert os.listdir(place.work) == []
    assert place.leftovers() == []


def test_it_is_done_with_the_rights_of_a_user(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    for directory in place.root, place.work, *place.root.parents:
        directory.chmod(directory.stat().st_mode & 0o7777 | 0o055)  # `/tmp` stays everybody's
    place.fences.chmod(0o1777)
    (place.work / "theirs").mkdir()
    os.chown(place.work / "theirs", NOBODY, NOBODY)
    members: list[Member] = [("d", {**DIR, "mode": 0o555}, b""), ("d/x", {"mode": 0o400}, b"x"), ("y", {}, b"y")]
    assert place.unpack("new", packed(*members), uid=NOBODY)["end"] == "denied"
    assert place.unpack("theirs/new", packed(*members), uid=NOBODY)["end"] == "ok"
    if not place.busybox:  # whose tar leaves such a directory open, unless it is root's
        assert stat.S_IMODE((place.work / "theirs/new/d").stat().st_mode) == 0o555
        assert place.unpack("theirs/new", packed(*members), uid=NOBODY)["end"] == "denied"  # it takes no more names
    assert place.unpack("theirs/new", packed(members[-1]), uid=NOBODY)["end"] == "ok"
    assert {path.lstat().st_uid for path in (place.work / "theirs").rglob("*")} == {NOBODY}
    (place.work / "theirs/secret").write_text("x")
    (place.work / "theirs/secret").chmod(0o600)
    assert place.run(scripts.PACK, "theirs", token="ab" * 16, uid=NOBODY)["end"] == "denied"
    assert place.leftovers() == []


@pytest.mark.parametrize(
    ("path", "reason"), [("gone", "missing"), ("f", "notdir"), ("/proc/1", "kernel"), ("/dev", "kernel")]
)
def test_only_a_directory_is_packed(place: Place, path: str, reason: str) -> None:
    (place.work / "f").touch()
    assert place.run(scripts.PACK, path, token="ab" * 16)["end"] == reason
    assert place.run(scripts.PREPARE_UNPACK, "f", token="ab" * 16)["end"] == "notdir"


def test_an_image_without_tar_says_so(place: Place, tmp_path: Path) -> None:
    if place.run("command -v tar >/dev/null && PATH= command -v tar >/dev/null && echo in=1; echo end=ok").lines.get(
        "in"
    ):
        pytest.skip("this shell is its own tar")
    tools = tmp_path / "few"
    tools.mkdir()
    for directory in str(place._env["PATH"]).split(":"):
        for tool in Path(directory).iterdir() if Path(directory).is_dir() else []:
            if tool.name != "tar" and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    place._env["PATH"] = str(tools)
    for text in (scripts.PACK, scripts.PREPARE_UNPACK):
        said = place.run(text, ".")
        assert (said["end"], said["tool"]) == ("tool", "tar")
