"""Archives that come in: what leads outside is refused, whatever it looks like, and the rest comes out as it was."""

from __future__ import annotations

import gzip
import io
import tarfile
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.files.tar import Packed, repack
from service.errors import FileTooLarge, InvalidRequest

MOST = 1 << 30


def archive(*members: tuple[str, dict[str, Any], bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar of members: a name, fields of its header, and content."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=form, errors="surrogateescape") as tar:
        for name, fields, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            for field, value in fields.items():
                setattr(member, field, value)
            tar.addfile(member, io.BytesIO(data))
    return made.getvalue()


def pieces(data: bytes, size: int = 1000) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def passed(data: bytes, *, most: int = MOST, size: int = 1000) -> tuple[Packed, bytes]:
    out = io.BytesIO()
    packed = repack(pieces(data, size), out.write, most=most)
    return packed, out.getvalue()


SYM, LNK, CHR, FIFO, DIR = (
    {"type": kind} for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
)


def link(name: str, target: str) -> tuple[str, dict[str, Any], bytes]:
    return name, {"type": tarfile.SYMTYPE, "linkname": target}, b""


@pytest.mark.parametrize(
    "members",
    [
        [("/etc/passwd", {}, b"x")],
        [("../x", {}, b"x")],
        [("a/../../x", {}, b"x")],
        [("a/..", DIR, b"")],
        [link("l", "/etc")],
        [link("l", "..")],
        [link("a/l", "../..")],
        [link("a/l", "../../a")],
        [link("a/l", "b/../../..")],
        [link("l", "a/..")],
        [link("l", "")],
        [link("l", "d"), ("l/x", {}, b"x")],
        [link("l", "d"), ("l/d/e/x", {}, b"x")],
        [("h", {"type": tarfile.LNKTYPE, "linkname": "a"}, b"")],
        [("dev", CHR, b"")],
        [("pipe", FIFO, b"")],
        [("odd", {"type": b"Z"}, b"")],
        [("n" * 256, {}, b"")],
        [("/".join(["n" * 200] * 21), {}, b"")],
        [("a/.oncebox-up-1/x", {}, b"")],
    ],
)
def test_what_leads_outside_is_refused(members: list[tuple[str, dict[str, Any], bytes]]) -> None:
    with pytest.raises(InvalidRequest):
        passed(archive(("fine", {}, b"x"), *members))


def test_what_stays_inside_passes() -> None:
    data = archive(
        ("./", {**DIR, "mode": 0o2750}, b""), ("./a//b/./c", {"mode": 0o4711}, b"data"), link("a/up", "../a/b"),
        link("a/here", "b/c"), link("dangling", "not/there"), ("empty", {"mode": 0}, b""),
        ("d", {**DIR, "mode": 0o000}, b""),
    )  # fmt: skip
    packed, out = passed(data)
    assert packed == Packed(files=6, named=5, bytes=4, mode=0o2750)
    with tarfile.open(fileobj=io.BytesIO(out)) as tar:
        found = {member.name: (member.type, member.mode, member.linkname) for member in tar}
    assert found == {
        "a/b/c": (tarfile.REGTYPE, 0o4711, ""),
        "a/up": (tarfile.SYMTYPE, 0o644, "../a/b"),
        "a/here": (tarfile.SYMTYPE, 0o644, "b/c"),
        "dangling": (tarfile.SYMTYPE, 0o644, "not/there"),
        "empty": (tarfile.REGTYPE, 0, ""),
        "d": (tarfile.DIRTYPE, 0, ""),
    }


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("packed_in", [lambda data: data, gzip.compress])
def test_every_form_of_tar_comes_out_the_same(form: int, packed_in: object) -> None:
    name = "d/" + "\u00fc" * 40 if form == tarfile.USTAR_FORMAT else "d/" + "\udcff\u00fc" * 60 + "/" + "x" * 200
    data = archive((name, {"mtime": 12345}, b"0123456789" * 100_000), form=form)
    for size in (1, 511, 70_000) if len(data) < 5000 else (4096, 70_000):
        _, out = passed(packed_in(data), size=size)  # type: ignore[operator]
        with tarfile.open(fileobj=io.BytesIO(out), errors="surrogateescape") as tar:
            (member,) = tar.getmembers()
            assert (member.name, member.mtime, member.size) == (name, 12345, 1_000_000)
            content = tar.extractfile(member)
            assert content is not None
            assert content.read() == b"0123456789" * 100_000


WHOLE = archive(("a", {}, b"x" * 3000), ("b", {}, b"y" * 10))


@pytest.mark.parametrize(
    "data", [b"", b"x", b"not a tar" * 1000, WHOLE[:3000], WHOLE[:512], WHOLE[:2000], WHOLE[:4096], b"\0" * 511]
)
def test_what_is_no_whole_tar_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        passed(data)
    if data:
        with pytest.raises(InvalidRequest):
            passed(gzip.compress(data))
        with pytest.raises(InvalidRequest):
            passed(gzip.compress(WHOLE)[:-9])


def test_an_empty_tar_is_one() -> None:
    assert passed(archive())[0] == Packed()


def test_what_unpacks_to_too_much_is_refused_while_it_is_small() -> None:
    bomb = gzip.compress(archive(("a", {}, b"\0" * (8 << 20))))
    assert len(bomb) < 20_000
    with pytest.raises(FileTooLarge):
        passed(bomb, most=1 << 20)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_of_any_size_is_not_read_into_memory(kind: bytes) -> None:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, 512 << 20
    head = member.tobuf(tarfile.USTAR_FORMAT)

    def body() -> Iterator[bytes]:
        yield head
        for _ in range(512):
            yield b"a" * (1 << 20)

    tracemalloc.start()
    with pytest.raises(InvalidRequest):
        repack(body(), lambda some: None, most=1 << 40)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_sparse_files_are_refused() -> None:
    member = tarfile.TarInfo("x")
    member.type = tarfile.GNUTYPE_SPARSE
    with pytest.raises(InvalidRequest):
        passed(member.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024)
    data = archive(("x", {"pax_headers": {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}}, b"1\n" * 600))
    with pytest.raises(InvalidRequest):
        passed(data)


def test_many_members_and_their_contents_take_no_memory() -> None:
    data = archive(*((f"d/{number}", {}, b"x") for number in range(5000)))
    tracemalloc.start()
    repack(pieces(data, 65_536), lambda some: None, most=MOST)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


@given(st.binary(max_size=3000))
def test_any_bytes_are_a_tar_or_a_problem(data: bytes) -> None:
    try:
        passed(data)
    except (InvalidRequest, FileTooLarge):
        pass


@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=20))
def test_a_damaged_tar_is_a_problem_or_still_stays_inside(at: int, by: bytes) -> None:
    try:
        _, out = passed(WHOLE[:at] + by + WHOLE[at + len(by) :])
    except (InvalidRequest, FileTooLarge):
        return
    with tarfile.open(fileobj=io.BytesIO(out), errors="surrogateescape") as tar:
        for member in tar:
            assert not member.name.startswith("/")
            assert ".." not in member.name.split("/")
