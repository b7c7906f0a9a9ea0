"""The files' scripts in bash, dash and busybox: any name, links, rights, and what they leave behind."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.core.files import scripts
from tests.contract.file_scripts_rig import Place, packed, shells

NAMES = [
    b"a b", b"it's", b'say "x"', b"line\nend", b"end\n", b"\nfirst", b"100%", b"$X", b"${HOME}", b"~", b"-rf", b"*",
    b"[a]", b"back\\slash", b".hidden", b"..two", b"n" * 255, "\u00fcn\u00efcode".encode(), b"\xff\xfe", b"tab\t",
    b"`id`", b"$(id)", b"a;b",
]  # fmt: skip
NOBODY = 65534


@pytest.fixture(params=shells())
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="oncebox-test-", dir="/tmp") as folder:  # no directory above it is private
        yield Place(request.param, Path(folder))


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_written_seen_and_removed(place: Place, name: bytes) -> None:
    assert place.put(name, b"one") == "new"
    assert place.put(name, b"", b"two ", b"more") == "old"
    target = os.fsencode(place.work) + b"/" + name
    assert Path(os.fsdecode(target)).read_bytes() == b"two more"
    said = place.run(scripts.INFO, name)
    assert said.stat.size == 8
    assert said.data("where") == target
    said = place.run(scripts.READ, name, WAY="1", token="ab" * 16)
    assert said["end"] == "ok"
    if "way" in said:
        assert (place.fences / f".way.{'ab' * 16}" / "to").read_bytes() == b"two more"
        place.run(scripts.ABORT, token="ab" * 16)
    assert place.run(scripts.REMOVE, name, RECURSIVE="")["end"] == "ok"
    assert os.listdir(place.work) == []
    assert place.leftovers() == []


def test_all_of_them_are_listed_by_the_bytes_of_their_names_in_pages_of_any_size(place: Place) -> None:
    for name in NAMES:
        Path(os.fsdecode(os.fsencode(place.work) + b"/" + name)).write_bytes(b"x")
    (place.work / "link").symlink_to("to\nsomewhere\n")
    whole = place.list()
    assert len(whole) == len(NAMES) + 1
    assert place.list(page=1) == whole
    assert place.list(page=7) == whole
    by_path = {file.path: file for file in whole}
    assert by_path["/d/link"].target == "to\nsomewhere\n"
    assert by_path["/d/line\nend"].size == 1
    assert next(file for file in whole if file.path_base64).path == "/d/\ufffd\ufffd"


def test_the_fences_and_what_uploads_have_under_way_are_not_listed(place: Place) -> None:
    (place.work / f"{scripts.UPLOAD}{'0' * 32}").mkdir()
    (place.work / "seen").touch()
    assert [file.path for file in place.list()] == ["/d/seen"]
    assert "/d/fences" not in [file.path for file in place.list(str(place.root.parent))]
    assert "/d/root" in [file.path for file in place.list(str(place.root.parent))]


def test_an_empty_directory_has_an_empty_list(place: Place) -> None:
    assert place.list() == []


def test_a_replaced_file_keeps_mode_and_owner_and_a_new_one_is_0644(place: Place, root: None) -> None:
    assert place.put("f", b"x") == "new"
    assert stat.S_IMODE((place.work / "f").stat().st_mode) == 0o644
    os.chown(place.work / "f", 12, 34)
    (place.work / "f").chmod(0o4751)
    assert place.put("f", b"y") == "old"
    about = (place.work / "f").stat()
    assert (about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)) == (12, 34, 0o4751)
    assert place.put("f", b"y", mode="0000") == "old"
    assert stat.S_IMODE((place.work / "f").stat().st_mode) == 0
    assert place.put("g", mode="6711") == "new"
    assert stat.S_IMODE((place.work / "g").stat().st_mode) == 0o6711


def test_a_link_is_written_through_and_removed_itself(place: Place) -> None:
    (place.work / "real").write_text("old")
    (place.work / "a").symlink_to("b")
    (place.work / "b").symlink_to(place.work / "real")
    assert place.put("a", b"new") == "old"
    assert (place.work / "real").read_text() == "new"
    assert (place.work / "a").is_symlink()
    (place.work / "nowhere").symlink_to("sub/dir/made")
    assert place.put("nowhere", b"x") == "new"
    assert (place.work / "sub/dir/made").read_bytes() == b"x"
    assert place.run(scripts.INFO, "a").target == b"b"
    assert place.run(scripts.REMOVE, "a", RECURSIVE="1")["end"] == "ok"
    assert (place.work / "real").exists()


def test_links_in_circles_and_to_nowhere_are_not_there(place: Place) -> None:
    (place.work / "x").symlink_to("y")
    (place.work / "y").symlink_to("x")
    (place.work / "z").symlink_to("gone")
    assert place.run(scripts.READ, "x", WAY="")["end"] == "loop"
    assert place.put("x", b"") == "loop"
    assert place.run(scripts.READ, "z", WAY="")["end"] == "missing"
    assert place.run(scripts.INFO, "z")["end"] == "ok"
    assert place.run(scripts.REMOVE, "z", RECURSIVE="")["end"] == "ok"
    assert place.run(scripts.REMOVE, "z", RECURSIVE="")["end"] == "missing"


def test_parents_are_made_only_when_all_is_there(place: Place) -> None:
    token = "cd" * 16
    assert place.run(scripts.PREPARE, "a/b//./c/f", token=token)["end"] == "ok"
    assert not (place.work / "a").exists()
    assert place.run(scripts.ABORT, token=token)["end"] == "ok"
    assert os.listdir(place.work) == []
    assert place.put("a/b//./c/f", b"x") == "new"
    assert (place.work / "a/b/c/f").read_bytes() == b"x"
    assert place.put("a/b/c/f/g", b"") == "notdir"
    assert place.put("a/b/../d/f", b"") == "new"
    assert place.put("q/../d/f", b"") == "missing"
    assert place.leftovers() == []


@pytest.mark.parametrize(
    ("path", "reason"), [(".", "isdir"), ("/", "isdir"), ("d", "isdir"), ("d/", "isdir"), ("..", "isdir")]
)
def test_a_directory_is_no_file(place: Place, path: str, reason: str) -> None:
    (place.work / "d").mkdir()
    assert place.put(path, b"x") == reason
    assert place.run(scripts.READ, path, WAY="")["end"] == reason
    assert place.run(scripts.INFO, path)["end"] == "ok"


def test_a_file_with_a_slash_behind_is_no_directory(place: Place) -> None:
    (place.work / "f").touch()
    assert place.run(scripts.INFO, "f/")["end"] == "notdir"
    assert place.put("new/", b"x") == "isdir"
    assert place.run(scripts.LIST, "f", PAGE="1", AFTER="")["end"] == "notdir"
    assert place.run(scripts.LIST, "g", PAGE="1", AFTER="")["end"] == "missing"


def test_what_is_special_is_neither_opened_nor_replaced(place: Place) -> None:
    os.mkfifo(place.work / "pipe")
    for path in ("pipe", "/dev/zero", "/dev/null"):
        assert place.run(scripts.READ, path, WAY="1")["end"] == "notfile"
        assert place.put(path, b"x") == "notfile"
    assert place.run(scripts.READ, "/proc/self/status", WAY="1")["end"] == "kernel"
    assert place.run(scripts.INFO, "pipe")["end"] == "ok"


def test_only_what_was_asked_for_is_replaced(place: Place) -> None:
    assert place.put("f", b"1", match="none") == "new"
    assert place.put("f", b"2", match="none") == "changed"
    seen = place.run(scripts.INFO, "f").stat
    assert place.put("f", b"3", match=seen.text) == "old"
    assert place.put("f", b"4", match=seen.text) == "changed"
    assert (place.work / "f").read_bytes() == b"3"
    assert place.put("g", b"5", match=seen.text) == "changed"
    assert place.leftovers() == []


def test_pieces_that_are_not_all_there_take_no_name(place: Place) -> None:
    token = "ef" * 16
    place.run(scripts.PREPARE, "f", token=token)
    assert place.run(scripts.FINISH, "f", token=token, SIZE="5", MATCH="", MODE="", OWN="")["end"] == "short"
    assert not (place.work / "f").exists()
    assert place.leftovers() == []
    assert place.run(scripts.FINISH, "f", token=token, SIZE="0", MATCH="", MODE="", OWN="")["end"] == "lost"


def test_a_lock_that_somebody_left_is_broken_after_half_a_minute(place: Place) -> None:
    assert place.put("f", b"1") == "new"
    about = place.work.stat()
    held = place.fences / f".lock.{about.st_dev}.{about.st_ino}"
    held.mkdir()
    os.utime(held, (1, 1))
    assert place.put("f", b"2") == "old"
    assert not held.exists()


def test_directories_are_made_with_their_parents(place: Place) -> None:
    said = place.run(scripts.MKDIR, "a/b/c", MODE="2750")
    assert (said["end"], said["made"]) == ("ok", "1")
    assert stat.S_IMODE((place.work / "a/b/c").stat().st_mode) == 0o2750
    assert place.run(scripts.MKDIR, "a/b/c", MODE="0700")["made"] == "0"
    assert stat.S_IMODE((place.work / "a/b/c").stat().st_mode) == 0o2750
    (place.work / "f").touch()
    assert place.run(scripts.MKDIR, "f", MODE="0755")["end"] == "notdir"
    assert place.run(scripts.MKDIR, "f/g", MODE="0755")["end"] == "notdir"
    assert place.run(scripts.MKDIR, ".", MODE="0755")["made"] == "0"


def test_a_directory_is_removed_with_what_is_in_it_only_if_that_is_asked(place: Place) -> None:
    (place.work / "d/e").mkdir(parents=True)
    (place.work / "d/f").touch()
    assert place.run(scripts.REMOVE, "d", RECURSIVE="")["end"] == "notempty"
    assert place.run(scripts.REMOVE, "d/e", RECURSIVE="")["end"] == "ok"
    assert place.run(scripts.REMOVE, "d/.", RECURSIVE="1")["end"] == "ok"
    assert not (place.work / "d").exists()


def test_an_upload_below_a_directory_that_is_removed_goes_on(place: Place) -> None:
    token = "12" * 16
    (place.work / "d/e").mkdir(parents=True)
    (place.work / "d/other").mkdir()
    (place.work / "d/f").touch()
    place.run(scripts.PREPARE, "d/e/new", token=token)
    assert place.run(scripts.REMOVE, "d", RECURSIVE="1")["end"] == "ok"
    assert [path.name for path in (place.work / "d").rglob("*")] == ["e", f"{scripts.UPLOAD}{token}"]
    assert place.run(scripts.FINISH, "d/e/new", token=token, SIZE="0", MATCH="", MODE="", OWN="")["end"] == "ok"
    assert (place.work / "d/e/new").exists()


def test_the_fence_directory_is_no_place_for_files(place: Place) -> None:
    (place.fences / "boot").write_text("mark")
    (place.work / "way").symlink_to(place.fences)
    for path in (str(place.fences), f"{place.fences}/boot", "way/boot", "way/"):
        assert place.run(scripts.INFO, path)["end"] == "fence", path
        assert place.run(scripts.REMOVE, path, RECURSIVE="1")["end"] in ("fence", "above"), path
    assert place.run(scripts.READ, "way/boot", WAY="")["end"] == "fence"
    assert place.put("way/boot", b"x") == "fence"
    assert place.put("way/new/one", b"x") == "fence"
    assert place.run(scripts.MKDIR, "way/d", MODE="0755")["end"] == "fence"
    assert place.run(scripts.LIST, "way", PAGE="1", AFTER="")["end"] == "fence"
    assert place.run(scripts.REMOVE, "/", RECURSIVE="1")["end"] == "above"
    assert place.run(scripts.REMOVE, str(place.fences.parent), RECURSIVE="1")["end"] == "above"
    assert place.run(scripts.REMOVE, "way", RECURSIVE="1")["end"] == "ok"
    assert (place.fences / "boot").read_text() == "mark"


def test_it_is_done_with_the_rights_of_a_user(place: Place, root: None) -> None:
    for directory in place.root, place.work, place.fences, *place.root.parents:
        directory.chmod(directory.stat().st_mode & 0o7777 | 0o055)  # `/tmp` stays everybody's
    place.fences.chmod(0o1777)
    (place.work / "theirs").mkdir()
    os.chown(place.work / "theirs", NOBODY, NOBODY)
    (place.work / "secret").write_text("x")
    (place.work / "secret").chmod(0o600)
    (place.work / "theirs/link").symlink_to(place.work / "secret")
    (place.work / "private").mkdir(mode=0o700)
    assert place.run(scripts.READ, "theirs/link", WAY="", uid=NOBODY)["end"] == "denied"
    assert place.put("theirs/link", b"", uid=NOBODY) == "denied"
    assert place.put("mine", b"", uid=NOBODY) == "denied"
    assert place.run(scripts.LIST, "private", PAGE="1", AFTER="", uid=NOBODY)["end"] == "denied"
    assert place.run(scripts.INFO, "private/x", uid=NOBODY)["end"] == "denied"
    assert place.run(scripts.REMOVE, "secret", RECURSIVE="", uid=NOBODY)["end"] == "denied"
    assert place.run(scripts.MKDIR, "private/x/y", MODE="0755", uid=NOBODY)["end"] == "denied"
    assert place.put("theirs/new", b"1", own="1", uid=NOBODY) == "new"
    assert place.put("theirs/new", b"1", b"2", own="1", uid=NOBODY) == "old"
    about = (place.work / "theirs/new").stat()
    assert (about.st_uid, about.st_gid, about.st_size) == (NOBODY, NOBODY, 2)
    (place.work / "theirs/roots").write_text("r")
    (place.work / "theirs/roots").chmod(0o666)
    assert place.put("theirs/roots", b"1", own="1", uid=NOBODY) == "denied"
    assert (place.work / "theirs/roots").read_text() == "r"
    assert place.leftovers() == []


def test_what_was_left_is_swept_and_what_is_young_stays(place: Place) -> None:
    for token in ("34" * 16, "56" * 16):
        place.run(scripts.PREPARE, "f", token=token)
    os.utime(place.work / f"{scripts.UPLOAD}{'34' * 16}", (1, 1))
    said = place.run(scripts.SWEEP, token="")
    assert (said["end"], said["left"]) == ("ok", "1")
    assert [path.name for path in place.work.iterdir()] == [f"{scripts.UPLOAD}{'56' * 16}"]
    os.utime(place.work / f"{scripts.UPLOAD}{'56' * 16}", (1, 1))
    assert place.run(scripts.SWEEP)["left"] == "0"
    assert place.leftovers() == []


def test_a_directory_of_more_than_a_hundred_thousand_names_is_not_listed(place: Place) -> None:
    for number in range(scripts.MOST_NAMES + 1):
        os.mknod(place.work / f"{number:06}")
    assert place.run(scripts.LIST, PAGE="2", AFTER="")["end"] == "toomany"
    os.unlink(place.work / "000000")
    said = place.run(scripts.LIST, PAGE="2", AFTER="".join(f"\\{byte:03o}" for byte in b"050000"))
    assert said["end"] == "ok"
    assert b"./050001\n" in said.data("page")


@pytest.fixture
def small_disk(place: Place, root: None) -> Iterator[Path]:
    """A directory with a disk of a megabyte."""
    disk = place.work / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_leaves_what_was_there_and_nothing_else(place: Place, small_disk: Path) -> None:
    (small_disk / "f").write_text("old")
    assert place.put("disk/f", b"x" * 450_000, b"x" * 400_000, own="1") == "full"
    assert (small_disk / "f").read_text() == "old"
    assert place.leftovers() == []


def test_an_archive_that_does_not_fit_leaves_nothing(place: Place, small_disk: Path) -> None:
    whole = packed(("a", {}, b"x" * 300_000), ("b", {}, b"x" * 300_000))
    said = place.unpack("disk/new", whole)
    assert said["end"] == "full"
    assert os.listdir(small_disk) == []
    assert place.leftovers() == []


def test_a_mounted_file_can_t_be_replaced_and_says_so(place: Place, root: None) -> None:
    (place.work / "real").write_text("real")
    (place.work / "mounted").write_text("under")
    mounted = subprocess.run(["mount", "--bind", place.work / "real", place.work / "mounted"], check=False)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        assert place.put("mounted", b"new") == "busy"
        assert place.run(scripts.REMOVE, "mounted", RECURSIVE="")["end"] == "busy"
        assert (place.work / "mounted").read_text() == "real"
        assert place.leftovers() == []
    finally:
        subprocess.run(["umount", place.work / "mounted"], check=True)
