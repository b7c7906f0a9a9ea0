"""The SDK's files over real connections that break, in both halves."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from service.client import (
    AsyncClient,
    Client,
    ConnectionFailed,
    DiskFull,
    FileNotFound,
    FileTooLarge,
    InvalidRequest,
    UnexpectedAnswer,
)
from service.client.driver import Hooks
from service.client.rules import Terms
from service.client.transfers import PIECE, archive_of, replaced, unpack
from tests.contract.file_server import FileServer, file_server
from tests.support.waiting import PATIENCE

Call = Callable[..., Any]
MIB = 1024 * 1024


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        yield running


def in_thread(server: FileServer, method: str, *args: Any, deadline: float = 60, **more: Any) -> Any:
    with Client(server.url, deadline=deadline, _hooks=_impatient()) as client:
        return getattr(client.sandbox("s").files, method)(*args, **more)


def in_loop(server: FileServer, method: str, *args: Any, deadline: float = 60, **more: Any) -> Any:
    async def call() -> Any:
        async with AsyncClient(server.url, deadline=deadline, _hooks=_impatient()) as client:
            return await getattr(client.sandbox("s").files, method)(*args, **more)

    return asyncio.run(call())


def _impatient() -> Hooks:
    return Hooks(terms=Terms(chance=lambda: 0.01))


@pytest.fixture(params=[in_thread, in_loop], ids=["sync", "async"])
def call(request: pytest.FixtureRequest) -> Call:
    made: Call = request.param
    return made


def test_a_download_goes_on_where_it_stood(server: FileServer, call: Call) -> None:
    data = random.Random(7).randbytes(3 * MIB + 17)
    server.files["/a b"] = data
    server.cuts = [MIB, 1, 0, 2 * MIB - 5]

    assert call(server, "read", "/a b") == data
    assert server.ranges[0] is None
    asked = [int(text.split("=")[1][:-1]) for text in server.ranges[1:] if text is not None]
    assert asked == sorted(asked)
    assert asked[-1] > MIB, "what had come was not asked for again"


def test_a_file_that_changes_during_its_download_is_read_anew(server: FileServer, call: Call, tmp_path: Path) -> None:
    server.files["/f"] = b"a" * MIB
    server.cuts = [MIB // 2]
    server.between = [("/f", b"b" * 1000)]
    seen: list[int] = []

    call(server, "download", "/f", tmp_path / "f", progress=lambda done, total: seen.append(done))
    assert (tmp_path / "f").read_bytes() == b"b" * 1000
    assert max(seen) > 1000 == seen[-1]


def test_what_can_not_be_taken_back_is_not_mixed(server: FileServer, call: Call) -> None:
    server.files["/f"] = b"a" * MIB
    server.cuts = [MIB // 2]
    server.between = [("/f", b"b" * 1000)]
    reading, writing = os.pipe()

    class Pipe(io.RawIOBase):
        def write(self, block: Any) -> int:
            return len(block)

        def seekable(self) -> bool:
            return False

    os.close(reading)
    os.close(writing)
    with pytest.raises(UnexpectedAnswer):
        call(server, "download", "/f", Pipe())


def test_tries_that_bring_something_do_not_use_up_the_deadline(server: FileServer, call: Call) -> None:
    server.files["/f"] = bytes(40 * 1000)
    server.cuts = [1000] * 39
    assert call(server, "read", "/f", deadline=20) == bytes(40 * 1000)


def test_a_download_that_brings_nothing_ends_at_the_deadline(server: FileServer, call: Call, tmp_path: Path) -> None:
    server.files["/f"] = b"new"
    server.cuts = [0] * 10_000
    (tmp_path / "f").write_bytes(b"old")
    with pytest.raises(ConnectionFailed):
        call(server, "download", "/f", tmp_path / "f", deadline=0.5)
    assert (tmp_path / "f").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"], "nothing is left behind"


def test_an_upload_that_breaks_off_is_sent_again_whole(server: FileServer, call: Call) -> None:
    data = random.Random(7).randbytes(3 * MIB + 17)
    server.cuts = [0, MIB, 3 * MIB]
    progress: list[tuple[int, int | None]] = []

    info = call(server, "write", "/f", _at(7, data), progress=_into(progress))
    assert server.files["/f"] == data
    assert info.size == len(data)
    assert progress[-1] == (len(data), len(data))
    assert progress.count((0, len(data))) == 4, "each try began anew"


def _at(place: int, data: bytes) -> IO[bytes]:
    file = io.BytesIO(b"." * place + data)
    file.seek(place)
    return file


def _into(seen: list[tuple[int, int | None]]) -> Callable[[int, int | None], None]:
    return lambda done, total: seen.append((done, total))


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 5 * MIB])
def test_every_kind_of_source_arrives(server: FileServer, call: Call, tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    (tmp_path / "local").write_bytes(data)
    reading, writing = os.pipe()
    feeding = os.fork()
    if not feeding:
        os.close(reading)
        with os.fdopen(writing, "wb") as feed:
            feed.write(data)
        os._exit(0)
    os.close(writing)

    call(server, "write", "/bytes", data)
    call(server, "write", "/file", io.BytesIO(data))
    call(server, "upload", tmp_path / "local", "/path")
    with os.fdopen(reading, "rb") as pipe:
        call(server, "upload", pipe, "/pipe")
    os.waitpid(feeding, 0)
    assert {path: content == data for path, content in server.files.items()} == dict.fromkeys(
        ("/bytes", "/file", "/path", "/pipe"), True
    )
    call(server, "write", "/text", "häh")
    assert server.files["/text"] == "häh".encode()


@pytest.mark.parametrize("size", [1, 64 * MIB])
def test_a_refusal_is_heard_whether_or_not_all_was_sent(server: FileServer, call: Call, size: int) -> None:
    server.refuse = (413, "FILE_TOO_LARGE")
    with pytest.raises((FileTooLarge, ConnectionFailed)) as caught:
        call(server, "write", "/f", bytes(size), deadline=1 if size > 1 else PATIENCE)
    if size == 1:
        assert caught.type is FileTooLarge


@pytest.mark.parametrize(
    ("code", "status", "kind"), [("DISK_FULL", 507, DiskFull), ("FILE_NOT_FOUND", 404, FileNotFound)]
)
def test_refusals_have_their_types(
    server: FileServer, call: Call, code: str, status: int, kind: type[Exception]
) -> None:
    server.refuse = (status, code)
    with pytest.raises(kind):
        call(server, "write", "/f", b"x")


def test_local_trouble_is_no_trouble_of_the_connection(server: FileServer, call: Call, tmp_path: Path) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, "the disk is broken")

        def write(self, block: Any) -> int:
            raise OSError(errno.ENOSPC, "the disk is full")

    server.files["/f"] = b"x" * 100
    with pytest.raises(OSError, match="broken"):
        call(server, "write", "/f", Broken(b"content"))
    assert server.files["/f"] == b"x" * 100
    with pytest.raises(OSError, match="full"):
        call(server, "download", "/f", Broken())
    with pytest.raises(FileNotFoundError):
        call(server, "upload", tmp_path / "not there", "/g")
    with pytest.raises(TypeError):
        call(server, "write", "/g", io.StringIO("text"))


def test_conditions_are_sent(server: FileServer, call: Call) -> None:
    call(server, "write", "/f", b"x", create=True)
    call(server, "write", "/f", b"x", if_match='"abc"')
    assert server.conditions == ["*", '"abc"']
    with pytest.raises(InvalidRequest):
        call(server, "write", "/f", b"x", if_match="abc\r\n")


def test_a_file_takes_its_local_name_when_it_is_whole(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(b"old")
    old.chmod(0o751)
    (tmp_path / "link").symlink_to(old)
    with pytest.raises(TypeError), replaced(tmp_path / "link") as file:
        file.write("half")  # type: ignore[call-overload]
    assert old.read_bytes() == b"old"
    with replaced(tmp_path / "link") as file:
        file.write(b"new")
    assert (old.read_bytes(), old.stat().st_mode & 0o7777) == (b"new", 0o751)
    assert sorted(os.listdir(tmp_path)) == ["link", "old"]


def test_a_directory_goes_through_its_archive_unchanged(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "exe").write_bytes(b"#!")
    (source / "sub" / "exe").chmod(0o755)
    (source / "odd \n name").write_bytes(b"")
    (source / "link").symlink_to("sub/exe")

    with archive_of(source) as (content, sent):
        data = b"".join(content.pieces())
    assert (sent.files, sent.bytes) == (4, 2)
    unpack(io.BytesIO(data), tmp_path / "there" / "below")
    found = tmp_path / "there" / "below"
    assert (found / "sub" / "exe").stat().st_mode & 0o777 == 0o755
    assert os.readlink(found / "link") == "sub/exe"
    assert (found / "odd \n name").read_bytes() == b""


@pytest.mark.parametrize("name", ["../outside", "/outside"])
def test_what_leads_outside_is_not_unpacked_here(tmp_path: Path, name: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(name))
    archive.seek(0)
    (tmp_path / "in").mkdir()
    if name.startswith("/"):  # the filter makes it a relative one
        unpack(archive, tmp_path / "in")
        assert os.listdir(tmp_path / "in") == ["outside"]
    else:
        with pytest.raises(tarfile.FilterError):
            unpack(archive, tmp_path / "in")
        assert os.listdir(tmp_path) == ["in"]
