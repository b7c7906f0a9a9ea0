"""Files on a running engine and a real Redis: what they cost, pauses, expiries, and what a dead replica leaves."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from service import errors
from service.core.app import Core
from service.core.files import scripts, transfers
from service.core.files.conditions import Conditions
from service.core.files.read import part_of
from service.core.limits import room
from service.core.limits.room import Share
from service.core.records import SandboxRecord
from service.core.sandboxes import expiry
from service.messages import CreateSandbox, Exec, Job, Unpacked
from tests.integration.core_rig import Rig
from tests.integration.cost_rig import Meter, metered
from tests.support.waiting import PATIENCE

TENANT = "default"


async def body(*parts: bytes, then: asyncio.Event | None = None) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
    if then is not None:
        await then.wait()


class Files:
    """The files of one sandbox, through one replica."""

    def __init__(self, core: Core, sandbox_id: str) -> None:
        self.core = core
        self.sandbox_id = sandbox_id

    async def put(self, path: str, content: AsyncIterator[bytes], **more: Any) -> None:
        asked = {"length": None, "mode": None, "user": None, "conditions": Conditions(), **more}
        with self.core.room.share(TENANT) as share:
            await self.core.files.put(TENANT, self.sandbox_id, path, content, share=share, **asked)

    async def get(self, path: str) -> bytes:
        with self.core.room.share(TENANT) as share:
            async with self.core.files.open(TENANT, self.sandbox_id, path, user=None, read=True) as found:
                whole = part_of(found.stat, None, Conditions())
                return b"".join([chunk async for chunk in self.core.files.reads.chunks(found, whole, share)])

    async def unpack(self, path: str, archive: bytes, user: str | None = None) -> Unpacked | Job:
        with self.core.room.share(TENANT) as share:
            return await self.core.files.unpack(
                TENANT, self.sandbox_id, path, body(archive), length=None, user=user, share=share
            )

    async def pack(self, path: str) -> bytes:
        with self.core.room.share(TENANT) as share:
            async with self.core.files.pack(TENANT, self.sandbox_id, path, user=None) as packing:
                return b"".join([chunk async for chunk in packing.chunks(share)])

    async def names(self, path: str = ".") -> list[str]:
        page = await self.core.files.list(TENANT, self.sandbox_id, path, user=None, page_size=200, page_token=None)
        return [item.path.rpartition("/")[2] for item in page.items]

    async def run(self, command: str) -> str:
        answer = await self.core.execs.run(TENANT, Exec(sandbox_id=self.sandbox_id, command=command), None)
        return answer.value.stdout


def archive(*names: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = 5
            tar.addfile(member, io.BytesIO(b"hello"))
    return made.getvalue()


@pytest.fixture
async def files(here: Rig) -> Files:
    core = await here.replica()
    return Files(core, await here.sandbox(core))


# -- costs


async def _put(files: Files) -> None:
    await files.put("f", body(b"x"))


async def _get(files: Files) -> None:
    await files.get("there")


async def _info(files: Files) -> None:
    await files.core.files.info(TENANT, files.sandbox_id, "there", user=None)


async def _info_of_a_user(files: Files) -> None:
    await files.core.files.info(TENANT, files.sandbox_id, "there", user="root")


async def _list(files: Files) -> None:
    await files.names()


async def _mkdir(files: Files) -> None:
    await files.core.files.make_directory(TENANT, files.sandbox_id, "a/b", mode=None, user=None)


async def _remove(files: Files) -> None:
    await files.core.files.remove(TENANT, files.sandbox_id, "gone", recursive=False, user=None)


async def _pack(files: Files) -> None:
    await files.pack(".")


COSTS: dict[str, tuple[Callable[[Files], Awaitable[None]], tuple[int, int]]] = {
    "PUT of a small file": (_put, (2, 3)),
    "GET of a small file": (_get, (1, 2)),
    "info": (_info, (1, 1)),
    "info, a user by name": (_info_of_a_user, (1, 2)),
    "a page of a directory": (_list, (1, 1)),
    "a directory made": (_mkdir, (1, 1)),
    "a removal": (_remove, (1, 1)),
    "GET of a small archive, and its removal there": (_pack, (1, 3)),
}
"""Commands to Redis and calls to the engine, exact. An upload lists what is to be swept if its replica dies."""


@pytest.fixture
async def meter(here: Rig) -> AsyncIterator[Meter]:
    async with metered(here) as meter:
        yield meter


@pytest.mark.parametrize("use", COSTS)
async def test_a_use_of_files_costs_what_the_table_says(meter: Meter, use: str) -> None:
    sandbox = await meter.core.sandboxes.create(TENANT, CreateSandbox(timeout=7200), None)
    files = Files(meter.core, sandbox.value.sandbox_id)
    await files.put("there", body(b"x"))
    await files.core.files.info(TENANT, files.sandbox_id, ".", user="root")
    work, cost = COSTS[use]
    spent = await meter.of(lambda: work(files), aftermath=True)
    assert (spent.commands.total(), spent.calls.total()) == cost, (spent.commands, spent.calls)


# -- pauses and expiries


async def _never_ends(files: Files, begun: asyncio.Event) -> None:
    """An upload whose sender has sent a part, and sends no more."""

    async def content() -> AsyncIterator[bytes]:
        yield b"x" * 400_000
        begun.set()
        await asyncio.Event().wait()

    await files.put("f", content())


async def _never_read(files: Files, begun: asyncio.Event) -> None:
    """A download whose reader has taken a part, and takes no more."""
    with files.core.room.share(TENANT) as share:
        async with files.core.files.open(TENANT, files.sandbox_id, "large", user=None, read=True) as found:
            async for _ in files.core.files.reads.chunks(found, part_of(found.stat, None, Conditions()), share):
                begun.set()
                await asyncio.Event().wait()


async def _never_unpacked(files: Files, begun: asyncio.Event) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield archive("a")[:1000]
        begun.set()
        await asyncio.Event().wait()

    with files.core.room.share(TENANT) as share:
        await files.core.files.unpack(TENANT, files.sandbox_id, "d", content(), length=None, user=None, share=share)


async def _never_packed(files: Files, begun: asyncio.Event) -> None:
    async with files.core.files.pack(TENANT, files.sandbox_id, ".", user=None):
        begun.set()
        await asyncio.Event().wait()


@pytest.mark.parametrize("transfer", [_never_ends, _never_read, _never_unpacked, _never_packed])
async def test_a_pause_ends_a_transfer(
    files: Files,
    transfer: Callable[[Files, asyncio.Event], Coroutine[Any, Any, None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Within five seconds: it is looked for every two (``transfers.EVERY``), and nothing else ends these."""
    assert transfers.EVERY * 2 < 5
    monkeypatch.setattr(transfers, "EVERY", 0.05)
    await files.put("large", body(b"y" * 3_000_000))
    begun = asyncio.Event()
    under_way = asyncio.create_task(transfer(files, begun))
    await begun.wait()
    await files.core.sandboxes.pause(TENANT, files.sandbox_id)
    with pytest.raises(errors.SandboxNotRunning):
        async with asyncio.timeout(60):
            await under_way
    with pytest.raises(errors.SandboxNotRunning):
        await files.get("f")
    await files.core.sandboxes.resume(TENANT, files.sandbox_id)
    await files.put("f", body(b"new"))
    assert await files.get("f") == b"new"
    assert "d" not in await files.names()


async def test_transfers_take_room_of_the_replica_s(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """What others have not taken yet leaves none: nothing is read or written."""
    monkeypatch.setitem(Share.hold.__kwdefaults__, "patience", 0.01)  # type: ignore[arg-type]
    await files.put("f", body(b"old"))
    files.core.room.capacity = 100_000
    uses: list[Callable[[], Awaitable[object]]] = [
        lambda: files.put("f", body(b"new")),
        lambda: files.get("f"),
        lambda: files.unpack("d", archive("a")),
        lambda: files.pack("."),
    ]
    for use in uses:
        with pytest.raises(errors.RateLimited):
            await use()
    files.core.room.capacity = room.CAPACITY
    assert await files.get("f") == b"old"
    assert await files.names() == ["f"]


@pytest.mark.parametrize("when", ["at its beginning", "while it lasts"])
async def test_a_transfer_keeps_its_sandbox_and_lets_it_go(
    here: Rig, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """A sandbox that would expire sooner; ``while it lasts``: it would not have at the beginning."""
    monkeypatch.setattr(expiry, "TOGETHER", 0.1)
    monkeypatch.setattr(transfers, "EVERY", 0.05)
    monkeypatch.setattr(transfers, "KEEP_EVERY", 1 if when == "while it lasts" else 10**9)
    core = await here.replica()
    if when == "while it lasts":
        keep = core.expiry.keep_for_transfer

        async def later(sandbox_id: str, known: SandboxRecord | None) -> bool:
            return known is None and await keep(sandbox_id, None)

        monkeypatch.setattr(core.expiry, "keep_for_transfer", later)
    files = Files(core, await here.sandbox(core, timeout=60))
    before = await _expiry(files)
    more = asyncio.Event()
    putting = asyncio.create_task(files.put("f", body(b"x", then=more)))
    await _until(lambda: _expires_after(files, before))
    kept = await _expiry(files)
    more.set()
    await putting
    assert await files.get("f") == b"x"
    await _until(lambda: _expires_before(files, kept))


async def _expiry(files: Files) -> str:
    found = (await files.core.sandboxes.get(TENANT, files.sandbox_id)).expires_at
    assert found is not None
    return found


async def _expires_after(files: Files, other: str) -> bool:
    return await _expiry(files) > other


async def _expires_before(files: Files, other: str) -> bool:
    return await _expiry(files) < other


async def _until(done: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await done():
            await asyncio.sleep(0.05)


# -- what a dead replica leaves


async def test_what_a_dead_replica_left_is_swept_by_another(
    files: Files, here: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut off in the middle of an upload; the clock of what it left is put back."""
    await files.put("f", body(b"old"))
    never = asyncio.Event()
    putting = asyncio.create_task(files.put("f", body(b"x" * 400_000, then=never)))
    listed = f"ls -a | grep -c '^{scripts.UPLOAD}'"
    await _until(lambda: _says(files, listed, "1"))
    monkeypatch.setattr(type(files.core.files._uploads), "_removed", _nothing)
    putting.cancel()
    await asyncio.gather(putting, return_exceptions=True)
    assert await files.names() == ["f"]
    other = await here.replica()
    leftovers = other.sweeper._leftovers
    assert await leftovers.remove(files.sandbox_id), "it may still be at work"
    await files.run(f"touch -d '2020-01-01' {scripts.UPLOAD}*")
    await other.store.plan("uploads", files.sandbox_id, after=0)
    await other.sweeper.clean_uploads()
    assert (await files.run(listed)).strip() == "0"
    assert await files.get("f") == b"old"


async def _nothing(*_: object) -> None:
    pass


async def _says(files: Files, command: str, text: str) -> bool:
    return (await files.run(command)).strip() == text


# -- archives and users


async def test_an_archive_goes_in_as_a_job_and_comes_out(files: Files) -> None:
    assert await files.unpack("d", archive("a", "b/c")) == Unpacked(files=2, bytes=10)
    page = await files.core.job_list.page(TENANT, sandbox_id=files.sandbox_id, page_size=10, page_token=None)
    assert [job.command[:17] for job in page.items] == [": oncebox unpacks"]
    with tarfile.open(fileobj=io.BytesIO(await files.pack("d"))) as tar:
        assert sorted(tar.getnames()) == [".", "./a", "./b", "./b/c"]
