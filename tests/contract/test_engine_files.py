"""The client's file calls and users on engines: the local one in both of its ways, and a real execd.

`ONCEBOX_TEST_EXECD_URL` names the latter.
"""

import asyncio
import os
import secrets
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from service.engine import OpenSandboxEngine
from service.ports.engine import (
    AnswerTooLarge,
    CommandSpec,
    DiskFull,
    Engine,
    EngineError,
    FileBusy,
    FileMissing,
    OwnerUnknown,
    PathDenied,
    PathExists,
    PathInvalid,
    PathIsDirectory,
    PathIsLink,
    PathNotDirectory,
    Refused,
    SandboxSpec,
    StartFailed,
    Unclear,
)
from tests.contract.local_engine_rig import KEY, RunningEngine
from tests.faults.execd_rig import OneSandbox
from tests.support.processes import Spawner

SPEC = SandboxSpec(image="python:3.12", entrypoint=["sleep", "infinity"], cpu="1", memory="1Gi", timeout=600)
MIB = 1 << 20
ROOT = os.geteuid() == 0


@dataclass
class Site:
    """A sandbox, a directory in it, and the engine that it is reached by."""

    engine: OpenSandboxEngine
    sandbox: str
    directory: str
    kind: str

    def at(self, name: str) -> str:
        return f"{self.directory}/{name}"

    async def sh(self, command: str) -> str:
        return (await self.engine.run_short(self.sandbox, f"cd {self.directory}; {command}", timeout=60)).stdout

    async def write(self, name: str, data: bytes, **more: object) -> None:
        await self.engine.upload(self.sandbox, self.at(name), data, length=len(data), **more)  # type: ignore[arg-type]

    async def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        async with self.engine.download(self.sandbox, self.at(name), offset, length) as found:
            data = b"".join([piece async for piece in found.pieces])
            assert len(data) == found.length
            return data


@pytest.fixture(params=["plain", "bwrap", "execd"])
async def site(request: pytest.FixtureRequest, spawn: Spawner, tmp_path: Path) -> AsyncIterator[Site]:
    lifecycle = None
    if request.param == "execd":
        url = os.environ.get("ONCEBOX_TEST_EXECD_URL")
        if not url:
            pytest.skip("ONCEBOX_TEST_EXECD_URL names no real execd")
        lifecycle = OneSandbox(urlsplit(url).netloc)
        await lifecycle.start()
        url = f"http://127.0.0.1:{lifecycle.port}"
    else:
        running = RunningEngine(spawn, "--isolation", "auto" if request.param == "bwrap" else "plain", root=tmp_path)
        if running.isolation != request.param:
            pytest.skip("bwrap does not work here")
        url = running.url
    engine = OpenSandboxEngine(url, api_key=KEY, proxy="never")
    info = await engine.create_sandbox(SPEC)
    found = Site(engine, info.id, f"/tmp/oncebox-test-{secrets.token_hex(6)}", request.param)
    await engine.make_directory(info.id, found.directory, mode=0o755)
    yield found
    await engine.remove_directory(info.id, found.directory)
    await engine.close()
    if lifecycle is not None:
        await lifecycle.stop()


async def raised(call: Awaitable[object]) -> type[BaseException] | None:
    try:
        await call
    except EngineError as error:
        return type(error)
    return None


async def in_pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [0, 1, 65_536, 5 * MIB, 40 * MIB])
async def test_bytes_in_are_the_bytes_out(site: Site, size: int) -> None:
    data = os.urandom(min(size, MIB)) * max(size // MIB, 1) if size else b""
    await site.write("whole", data)
    await site.engine.upload(site.sandbox, site.at("new/in pieces"), in_pieces(data, 777_777), length=size, mode=0o640)
    assert await site.read("whole") == await site.read("new/in pieces") == data
    about = await site.engine.file_info(site.sandbox, site.at("new/in pieces"))
    assert (about.type, about.size, about.mode) == ("file", size, 0o640)
    assert await site.read("whole", size // 2, 1000) == data[size // 2 :][:1000]
    assert await site.read("whole", size + 5) == b""


async def test_a_name_may_be_odd(site: Site) -> None:
    for name in ("a b", "'\"", "new\nline", "100%", "a+b&c=d#e?f", "é", "x" * 255, "-n", "*", "~x"):
        await site.write(name, name.encode())
        assert await site.read(name) == name.encode()
    shown = await site.engine.list_directory(site.sandbox, site.directory, limit=MIB)
    assert len(shown) == 10
    assert [each.path for each in shown] == sorted((each.path for each in shown), key=str.encode)


async def test_an_upload_that_breaks_off_changes_nothing(site: Site) -> None:
    class Broken(Exception):
        pass

    async def breaking() -> AsyncIterator[bytes]:
        yield b"x" * 100_000
        raise Broken

    await site.write("kept", b"old")
    for source, wanted in ((breaking(), Broken), (in_pieces(b"12345", 2), ValueError)):
        with pytest.raises(wanted):
            await site.engine.upload(site.sandbox, site.at("kept"), source, length=200_000)
    with pytest.raises(ValueError, match="4 bytes"):
        await site.engine.upload(site.sandbox, site.at("kept"), in_pieces(b"12345", 2), length=4)
    assert await site.read("kept") == b"old"


async def test_what_a_file_system_refuses_has_a_type(site: Site) -> None:
    await site.write("file", b"x")
    await site.sh("mkdir d; ln -s d to-d; ln -s loop loop; ln -s nowhere dangling")
    engine, sandbox, at = site.engine, site.sandbox, site.at

    async def upload(path: str, **more: str) -> None:
        await engine.upload(sandbox, path, b"x", length=1, **more)  # type: ignore[arg-type]

    wanted: list[tuple[Awaitable[object], type[EngineError]]] = [
        (upload(at("d")), PathIsDirectory),
        (upload(at("file/below")), PathNotDirectory),
        (upload(at("loop")), PathInvalid),
        (upload(at("x" * 256)), PathInvalid),
        (upload(at("n\0ul")), PathInvalid),
        (upload(at("\udcff")), PathInvalid),
        (upload("/tmp/$ONCEBOX_UNSET"), PathInvalid),
        (upload("/dev/full"), DiskFull),
        (upload(at("o"), owner="nobody-at-all"), OwnerUnknown),
        (upload(at("o"), group="nobody-at-all"), OwnerUnknown),
        (site.read("none"), FileMissing),
        (site.read("dangling"), FileMissing),
        (site.read("file/below"), PathNotDirectory),
        (site.read("d"), Unclear),
        (engine.file_info(sandbox, at("none")), FileMissing),
        (engine.file_info(sandbox, at("file/below")), PathNotDirectory),
        (engine.list_directory(sandbox, at("none"), limit=MIB), FileMissing),
        (engine.list_directory(sandbox, at("file"), limit=MIB), PathNotDirectory),
        (engine.list_directory(sandbox, at("to-d"), limit=MIB), PathIsLink),
        (engine.list_directory(sandbox, site.directory, limit=100), AnswerTooLarge),
        (engine.make_directory(sandbox, at("file")), PathNotDirectory),
        (engine.make_directory(sandbox, at("file/below")), PathNotDirectory),
        (engine.move(sandbox, at("file"), at("d")), PathExists),
        (engine.move(sandbox, at("none"), at("new")), FileMissing),
        (engine.move(sandbox, at("file"), "/dev/shm/oncebox"), FileBusy),
        (engine.set_permissions(sandbox, at("none"), mode=0o600), FileMissing),
        (engine.set_permissions(sandbox, at("file"), owner="nobody-at-all"), OwnerUnknown),
        (engine.remove_files(sandbox, [at("d")]), PathIsDirectory),
        (engine.remove_files(sandbox, [at("file/below")]), PathNotDirectory),
        (engine.remove_directory(sandbox, at("file/below")), PathNotDirectory),
    ]
    assert [(await raised(call), kind) for call, kind in wanted] == [(kind, kind) for _, kind in wanted]


async def test_names_are_made_moved_and_removed(site: Site) -> None:
    engine, sandbox, at = site.engine, site.sandbox, site.at
    await engine.make_directory(sandbox, at("a/b"), mode=0o700)
    await engine.make_directory(sandbox, at("a/b"), mode=0o777)
    assert (await engine.file_info(sandbox, at("a/b"))).mode == 0o700
    await site.write("a/b/f", b"1")
    await engine.move(sandbox, at("a/b/f"), at("c/g"))
    await engine.set_permissions(sandbox, at("c/g"), mode=0o600)
    await site.sh("chmod 4711 c/g; ln -s c/g l; ln -s nowhere dangling; mkfifo fifo")
    shown = {each.path.rpartition("/")[2]: each for each in await engine.list_directory(sandbox, at(""), limit=MIB)}
    assert {name: each.type for name, each in shown.items()} == {
        "a": "directory", "c": "directory", "dangling": "symlink", "fifo": "other", "l": "symlink",
    }  # fmt: skip
    about = await engine.file_info(sandbox, at("c/g"))
    assert about.mode == 0o711
    stat = await site.sh("stat -c '%Y %Z %U %G' c/g")
    assert f"{about.modified_ns // 10**9} {about.changed_ns // 10**9} {about.owner} {about.group}" == stat
    await engine.remove_files(sandbox, [at("l"), at("dangling"), at("none"), at("fifo")])
    await engine.remove_directory(sandbox, at("a"))
    await engine.remove_directory(sandbox, at("a"))
    assert await site.sh("ls") == "c\ndangling"


async def test_a_mode_that_execd_does_not_know_is_not_sent(site: Site) -> None:
    for mode in (0, 0o1000, -1):
        with pytest.raises(ValueError, match="0o777"):
            await site.write("f", b"", mode=mode)
    with pytest.raises(FileMissing):
        await site.engine.file_info(site.sandbox, site.at("f"))


async def test_neither_way_holds_a_file_in_memory(site: Site) -> None:
    size = 64 * MIB

    async def source() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield bytes(MIB)

    tracemalloc.start()
    try:
        await site.engine.upload(site.sandbox, site.at("large"), source(), length=size)
        async with site.engine.download(site.sandbox, site.at("large")) as found:
            assert sum([len(piece) async for piece in found.pieces]) == size == found.size
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * MIB


async def test_a_reader_that_waits_holds_the_sender_up(site: Site) -> None:
    await site.sh("head -c 67108864 /dev/zero >large")
    async with site.engine.download(site.sandbox, site.at("large")) as found:
        first = await anext(found.pieces)
        tracemalloc.start()
        await asyncio.sleep(0.5)
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        rest = sum([len(piece) async for piece in found.pieces])
    assert len(first) + rest == 64 * MIB
    assert held < 4 * MIB


async def test_a_file_that_shrinks_is_a_cut(site: Site) -> None:
    await site.sh("head -c 67108864 /dev/zero >large")

    async def shrinking() -> None:
        async with site.engine.download(site.sandbox, site.at("large")) as found:
            await anext(found.pieces)
            await site.sh(": >large")
            async for _ in found.pieces:
                pass

    with pytest.raises(Unclear):
        await shrinking()


async def test_a_file_that_is_replaced_meanwhile_is_read_whole(site: Site) -> None:
    await site.sh("head -c 67108864 /dev/zero >large")
    async with site.engine.download(site.sandbox, site.at("large")) as found:
        await anext(found.pieces)
        await site.sh("echo new >other; mv other large")
        async for piece in found.pieces:
            assert not piece.strip(b"\0")
    assert await site.read("large") == b"new\n"


async def test_a_pause_stops_a_transfer(site: Site) -> None:
    if site.kind == "execd":
        pytest.skip("a daemon without a container is not paused")
    await site.sh("head -c 67108864 /dev/zero >large")
    taken = 0
    async with asyncio.timeout(60), site.engine.download(site.sandbox, site.at("large")) as found:

        async def rest() -> None:
            nonlocal taken
            async for piece in found.pieces:
                taken += len(piece)

        taken += len(await anext(found.pieces))
        await site.engine.pause_sandbox(site.sandbox)
        reader = asyncio.create_task(rest())
        try:
            before = -1
            while before != taken:
                before = taken
                await asyncio.sleep(0.3)
            assert taken < 32 * MIB
        finally:  # nothing that is paused can be ended, this download neither
            await site.engine.resume_sandbox(site.sandbox)
            await reader
    assert taken == 64 * MIB


async def test_a_fifo_blocks(site: Site) -> None:
    await site.sh("mkfifo fifo")
    for call in (
        site.engine.upload(site.sandbox, site.at("fifo"), b"x", length=1, timeout=0.7),
        site.engine.read_lines(site.sandbox, site.at("other"), 10),
    ):
        assert await raised(call) in (Unclear, FileMissing)
    # The one that was left is still there: it writes as soon as somebody reads.
    assert await site.sh("timeout 60 cat fifo") == "x"


async def test_a_part_of_a_listing_is_no_listing(site: Site) -> None:
    await site.sh("i=0; while [ $i -lt 1500 ]; do : >$i; i=$((i+1)); done")
    found = await site.engine.list_directory(site.sandbox, site.directory, limit=MIB)
    assert len(found) == 1500


# -- users


needs_root = pytest.mark.skipif(not ROOT, reason="only a daemon that runs as root can switch users")


@needs_root
async def test_a_command_runs_as_its_user(site: Site) -> None:
    async def ids(**user: int) -> str:
        return (await site.engine.run_short(site.sandbox, "id -u; id -g; id -G", timeout=60, **user)).stdout  # type: ignore[arg-type]

    assert await ids(uid=4242) == "4242\n0\n0"
    assert await ids(uid=4242, gid=4343) == "4242\n4343\n4343"
    assert (await ids(uid=1)).splitlines()[:2] == ["1", "1"]
    await site.engine.set_permissions(site.sandbox, site.directory, mode=0o777)
    path = site.at("hers")
    await site.engine.run_short(site.sandbox, f"umask 077; echo x >{path}", timeout=60, uid=4242, gid=4343)
    about = await site.engine.file_info(site.sandbox, path)
    assert (about.owner, about.group, about.mode) == ("4242", "4343", 0o600)


@needs_root
async def test_the_user_is_changed_before_the_directory(site: Site) -> None:
    await site.engine.make_directory(site.sandbox, site.at("private"), mode=0o700)
    spec = CommandSpec(command="pwd", timeout=5, cwd=site.at("private"), uid=4242)
    assert await raised(site.engine.submit(site.sandbox, spec)) is StartFailed
    assert await raised(anext(started(site.engine, site.sandbox, spec))) is StartFailed


async def started(engine: Engine, sandbox: str, spec: CommandSpec) -> AsyncIterator[object]:
    async for event in engine.stream(sandbox, spec, silence=10):
        if event.type not in ("init", "ping"):
            yield event


async def test_a_group_without_a_user_is_refused(site: Site) -> None:
    run: Callable[..., Awaitable[object]] = site.engine.run_short
    assert await raised(run(site.sandbox, "id", timeout=5, gid=4343)) is Refused
    assert await raised(run(site.sandbox, "id", timeout=5, uid=2**32)) is Refused
    assert await raised(run(site.sandbox, "id", timeout=5, uid=2**32 - 1)) is StartFailed


@pytest.mark.skipif(ROOT, reason="root can")
async def test_a_daemon_that_can_not_switch_says_so(site: Site) -> None:
    assert await raised(site.engine.run_short(site.sandbox, "id", timeout=5, uid=4242)) is StartFailed
    assert await raised(site.write("f", b"x", owner="root")) in (PathDenied, None)


async def test_a_line_without_an_end_kills_the_daemon(site: Site) -> None:
    if site.kind == "execd":
        pytest.skip("it would take this machine's memory")
    small = await site.engine.create_sandbox(msgspec.structs.replace(SPEC, memory="16Mi"))
    assert await raised(site.engine.read_lines(small.id, "/dev/zero", 1000)) is Unclear
    assert await raised(site.engine.ping(small.id)) is not None
    await site.engine.ping(site.sandbox)
