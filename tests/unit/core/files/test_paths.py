"""Paths, entity tags and conditions: pure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.files import disposition
from service.core.files import paths
from service.core.files.conditions import Conditions, http_date
from service.core.files.read import Part, part_of
from service.errors import InvalidRequest, PreconditionFailed, RangeNotSatisfiable
from service.messages import FileType

LINE = "81a4 10 0 0 65024 99 1700000000 2023-11-14 22:13:20.123456789 +0000|1700000001 2023-11-14 22:13:21.5|"
SEEN = paths.parse_stat(LINE)


@pytest.mark.parametrize(
    ("asked", "kept"),
    [("a", "a"), ("/a//b/./c", "/a/b/c"), ("a/../b", "a/../b"), ("./a", "./a"), ("/", "/"), ("a/", "a/"), ("~", "~")],
)
def test_a_path_is_kept_but_for_what_means_nothing(asked: str, kept: str) -> None:
    assert paths.checked(asked) == kept


@pytest.mark.parametrize(
    "path", ["", "a\0", "\ud800", "a" * 4097, "\u00fc" * 2049, ".oncebox-up-x", "a/.oncebox-up-1/b"]
)
def test_what_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        paths.checked(path)
    assert refused.value.errors[0].field == "path"


@pytest.mark.parametrize(("text", "mode"), [("644", "0644"), ("0755", "0755"), ("0o4755", "4755"), ("0", "0000")])
def test_modes_are_octal(text: str, mode: str) -> None:
    assert paths.octal("mode", text) == mode
    assert paths.octal("mode", None) is None


@pytest.mark.parametrize("text", ["", "8", "rwx", "77777", "-1", "0x1", "\u0661"])
def test_others_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        paths.octal("mode", text)


def test_the_shown_path_is_the_one_that_was_asked_for() -> None:
    assert paths.shown("/workspace/x/", b"/base", b"/real/x") == b"/workspace/x"
    assert paths.shown("x/y", b"/base", b"/real/y") == b"/base/x/y"
    assert paths.shown("./x", b"/", b"/real") == b"/x"
    assert paths.shown("a/../x", b"/base", b"/base/x") == b"/base/x"
    assert paths.shown(".", b"/base", b"/base") == b"/base"
    assert paths.shown("/", b"/base", b"/") == b"/"


def test_a_mount_point_is_the_longest_that_fits() -> None:
    mounts = ["/root", "/root/.claude", "/workspace"]
    assert paths.from_mount("/root/.claude/x", mounts) == ("/root/.claude", "./x")
    assert paths.from_mount("/workspace", mounts) == ("/workspace", "./")
    assert paths.from_mount("/workspaces/x", mounts) == (None, "/workspaces/x")
    assert paths.from_mount("workspace", mounts) == (None, "workspace")


def test_a_line_of_stat_is_read_to_the_nanosecond() -> None:
    assert (SEEN.size, SEEN.mtime, SEEN.ctime) == (10, 1_700_000_000_123_456_789, 1_700_000_001_500_000_000)
    shown = paths.file_of(b"/a\xff", SEEN)
    assert (shown.type, shown.mode, shown.modified_at) == (FileType.FILE, "0644", "2023-11-14T22:13:20.123Z")
    assert (shown.path, shown.path_base64) == ("/a\ufffd", "L2H/")
    assert paths.file_of(b"/", paths.parse_stat(LINE.replace("1700000000", "-99999999999999"))).modified_at


@pytest.mark.parametrize(
    "other",
    [
        LINE.replace("81a4 10", "81a4 11"),
        LINE.replace(" 99 ", " 98 "),
        LINE.replace("789", "788"),
        LINE.replace("21.5", "21.6"),
    ],
)
def test_the_tag_is_another_one_after_any_change(other: str) -> None:
    assert paths.parse_stat(other).etag != SEEN.etag
    assert paths.parse_stat(LINE).etag == SEEN.etag


TAG = SEEN.etag


@pytest.mark.parametrize(
    ("conditions", "there", "wanted"),
    [
        (Conditions(), None, ""),
        (Conditions(), SEEN, ""),
        (Conditions(if_match=f'"a", {TAG}'), SEEN, LINE),
        (Conditions(if_match="*"), SEEN, ""),
        (Conditions(if_none_match="*"), None, "none"),
        (Conditions(if_none_match='"a"'), SEEN, LINE),
        (Conditions(if_match="*"), None, None),
        (Conditions(if_match='"a"'), SEEN, None),
        (Conditions(if_match=f"W/{TAG}"), SEEN, None),
        (Conditions(if_none_match="*"), SEEN, None),
        (Conditions(if_none_match=f"W/{TAG}"), SEEN, None),
    ],
)
def test_what_a_put_asks_for(conditions: Conditions, there: paths.Stat | None, wanted: str | None) -> None:
    if wanted is None:
        with pytest.raises(PreconditionFailed):
            conditions.for_put(there)
    else:
        assert conditions.for_put(there) == wanted


@pytest.mark.parametrize("header", ["", "x", '"a', '"a" "b"', "*, *"])
def test_what_is_no_tag_is_a_problem(header: str) -> None:
    with pytest.raises(InvalidRequest):
        Conditions(if_match=header).for_put(SEEN)


def test_ranges_of_a_file() -> None:
    assert part_of(SEEN, None, Conditions()) == Part(0, 10)
    assert part_of(SEEN, (2, 4), Conditions()) == Part(2, 5, partial=True)
    assert part_of(SEEN, (2, 99), Conditions()) == Part(2, 10, partial=True)
    assert part_of(SEEN, (None, 3), Conditions()) == Part(7, 10, partial=True)
    assert part_of(SEEN, (None, 30), Conditions(if_range=TAG)) == Part(0, 10, partial=True)
    assert part_of(SEEN, (2, 4), Conditions(if_range=http_date(SEEN))) == Part(2, 5, partial=True)
    assert part_of(SEEN, (2, 4), Conditions(if_range=f"W/{TAG}")) == Part(0, 10)
    assert part_of(SEEN, (2, 4), Conditions(if_none_match=TAG)).unchanged
    with pytest.raises(RangeNotSatisfiable) as refused:
        part_of(SEEN, (10, None), Conditions())
    assert refused.value.size == 10


@given(st.text(min_size=1, max_size=300))
def test_any_name_makes_a_header(name: str) -> None:
    made = disposition(name)
    assert made.isascii()
    assert made.isprintable()
    assert made.startswith('attachment; filename="')
