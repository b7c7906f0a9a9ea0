"""Transfers that are cut at any byte, on either side: each leaves what was there, or what was sent, and nothing else.

The sandbox is a directory of this machine: scripts really run, in the smallest shell that is here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from service import errors
from service.core.claims.tasks import Tasks
from service.core.files import read, scripts, upload
from service.core.files.conditions import Conditions
from service.core.files.names import Names
from service.core.files.read import Reads, part_of
from service.core.files.shell import Shell
from service.core.files.upload import Uploads
from service.core.limits.room import Room
from service.ports.engine import Download, NotReached, ShortResult, Unclear

CUTS = int(os.environ.get("ONCEBOX_TEST_CUTS", "60"))
"""Transfers of each kind."""
SHELL = next(shell for shell in ("dash", "sh", "bash") if shutil.which(shell))
OLD, NEW = b"old" * 5000, bytes(range(256)) * 400


class CallerGone(Exception):
    """As the API says it."""


class Engine:
    """A sandbox's daemon whose network fails as often as ``trouble`` says (0 to 1)."""

    def __init__(self, work: Path, dice: random.Random) -> None:
        self.work = work
        self.dice = dice
        self.trouble = 0.0
        self.calls: list[str] = []
        self.ready = asyncio.Event()
        """Until then commands wait."""
        self.ready.set()
        self.first: Callable[[], object] = lambda: None
        """Called with each first byte of an upload."""

    def _may_fail(self, *kinds: type[Exception]) -> None:
        if self.dice.random() < self.trouble:
            raise self.dice.choice(kinds)("cut")

    async def run_short(
        self, sandbox_id: str, command: str, *, timeout: float, env: Mapping[str, str], **_: Any
    ) -> ShortResult:
        self.calls.append("run")
        await self.ready.wait()
        self._may_fail(NotReached)
        variables: Any = {**env, "PATH": os.environ["PATH"]}
        process = await asyncio.create_subprocess_exec(
            SHELL, "-c", command, cwd=self.work, env=variables,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        out, _err = await process.communicate()
        self._may_fail(Unclear)
        return ShortResult(process.returncode or 0, out.decode().rstrip("\n"))

    async def upload(self, sandbox_id: str, path: str, data: Any, *, length: int, **_: Any) -> None:
        self.calls.append("upload")
        self._may_fail(NotReached)
        whole = b""
        async for chunk in data:
            whole += chunk
            self.first()
        assert len(whole) == length
        if self.dice.random() < self.trouble:  # cut before it was whole, or while it was copied
            await asyncio.to_thread(Path(path).write_bytes, whole[: self.dice.randrange(length + 1)])
            raise Unclear("cut")
        await asyncio.to_thread(Path(path).write_bytes, whole)
        self._may_fail(Unclear)

    @contextlib.asynccontextmanager
    async def download(
        self, sandbox_id: str, path: str, offset: int = 0, length: int | None = None, *, timeout: float = 300
    ) -> AsyncIterator[Download]:
        self.calls.append("download")
        self._may_fail(NotReached, Unclear)
        data = await asyncio.to_thread(Path(path).read_bytes)
        asked = data[offset : offset + (length or len(data))]
        yield Download(offset, len(asked), len(data), self._pieces(asked))

    async def _pieces(self, data: bytes) -> AsyncIterator[bytes]:
        sent = 0
        cut = self.dice.randrange(len(data) + 1) if self.dice.random() < self.trouble else len(data) + 1
        for start in range(0, len(data), 7000):
            piece = data[start : start + 7000]
            if sent + len(piece) >= cut:
                yield piece[: cut - sent]
                raise Unclear("cut")
            sent += len(piece)
            yield piece


class World:
    """One sandbox and the use cases around it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.fences = folder / "fences"
        self.dice = random.Random(seed)
        self.engine = Engine(self.work, self.dice)
        engine: Any = self.engine
        self.tasks = Tasks()
        self.room = Room()
        shell = Shell(engine, str(self.fences), startup=_nothing, asleep=_no, mounts=())
        self.uploads = Uploads(engine, _Chores(), shell, self.tasks, most=1 << 30)  # type: ignore[arg-type]
        self.reads = Reads(engine, shell, self.tasks)
        self.names = Names(shell)

    async def put(self, name: str, body: AsyncIterator[bytes], length: int | None = None) -> None:
        with self.room.share("t") as share:
            await self.uploads.put(
                "s", name, body, length=length, mode=None, user=None, conditions=Conditions(), share=share
            )

    def known(self, length: int) -> int | None:
        """It, for one half of all callers: theirs goes as one piece, the others' in several."""
        return self.dice.choice((length, None))

    async def get(self, name: str) -> bytes:
        with self.room.share("t") as share:
            async with self.reads.of("s", name, user=None) as found:
                whole = part_of(found.stat, None, Conditions())
                return b"".join([chunk async for chunk in self.reads.chunks(found, whole, share)])

    async def quiet(self) -> None:
        self.engine.trouble = 0.0
        while self.tasks._running:
            await asyncio.sleep(0.005)

    def leftovers(self) -> list[str]:
        ways = [path.name for path in self.fences.iterdir()] if self.fences.exists() else []
        return ways + [path.name for path in self.work.rglob(f"{scripts.UPLOAD}*")]


class _Chores:
    async def plan(self, chore: str, sandbox_id: str, *, after: float) -> None:
        pass


async def _nothing(sandbox_id: str) -> Mapping[str, str]:
    return {}


async def _no(sandbox_id: str) -> bool:
    return False


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(upload, "PIECE", 9000)
    monkeypatch.setattr(upload, "LEAST", 2000)
    monkeypatch.setattr(upload, "TRY_AGAIN", 0.0)
    monkeypatch.setattr(read, "RANGE", 20_000)
    monkeypatch.setattr(read, "TRY_AGAIN", 0.0)
    return World(tmp_path, seed=20261201)


async def chunks(data: bytes, size: int, cut: int | None = None) -> AsyncIterator[bytes]:
    """A body; its caller is gone after ``cut`` bytes."""
    for start in range(0, len(data) if cut is None else cut, size):
        yield data[start : min(start + size, len(data) if cut is None else cut)]
        await asyncio.sleep(0)
    if cut is not None:
        raise CallerGone


async def test_an_upload_whose_caller_is_gone_before_its_last_byte_changes_nothing(world: World) -> None:
    for number in range(CUTS):
        name = f"f{number % 3}"
        there = (world.work / name).exists()
        if there:
            (world.work / name).write_bytes(OLD)
        sent = chunks(NEW, 1 + world.dice.randrange(5000), world.dice.randrange(len(NEW)))
        with pytest.raises(CallerGone):
            await world.put(name, sent, world.known(len(NEW)))
        assert (world.work / name).read_bytes() == OLD if there else not (world.work / name).exists()
        if not there and number > CUTS // 2:
            (world.work / name).write_bytes(OLD)
    await world.quiet()
    assert world.leftovers() == []


async def test_an_upload_whose_engine_is_cut_is_there_whole_or_not_at_all(world: World) -> None:
    done = 0
    for number in range(CUTS):
        (world.work / "f").write_bytes(OLD)
        world.engine.trouble = 0.08
        try:
            await world.put("f", chunks(NEW, 1 + world.dice.randrange(5000)), world.known(len(NEW)))
        except errors.EngineUnavailable:
            assert (world.work / "f").read_bytes() in (OLD, NEW), number
        else:
            done += 1
            assert (world.work / "f").read_bytes() == NEW
    assert 0 < done < CUTS
    await world.quiet()
    await world.put("f", chunks(NEW, 4000))
    assert (world.work / "f").read_bytes() == NEW


async def test_a_change_whose_answer_is_lost_may_be_asked_for_again(world: World) -> None:
    """It may have been done: the answer says so, and doing it again comes to the same."""
    lost = 0

    async def until_answered(change: Callable[[], Awaitable[object]]) -> None:
        nonlocal lost
        while True:
            try:
                await change()
                return
            except errors.EngineUnavailable as error:
                lost += error.retryable and "may have been done" in error.detail

    for _ in range(CUTS // 6):
        world.engine.trouble = 0.4
        await until_answered(lambda: world.names.make_directory("s", "d/e", mode="0750", user=None))
        assert (world.work / "d/e").stat().st_mode & 0o7777 == 0o750
        await until_answered(lambda: world.put("d/e/f", chunks(NEW, 50_000)))
        assert (world.work / "d/e/f").read_bytes() == NEW
        await until_answered(lambda: world.names.remove("s", "d/e/f", recursive=False, user=None))
        assert not (world.work / "d/e/f").exists()
        await until_answered(lambda: world.names.remove("s", "d", recursive=True, user=None))
        world.engine.trouble = 0.0
        await world.names.remove("s", "d", recursive=True, user=None)
        shutil.rmtree(world.work / "d", ignore_errors=True)  # uploads that were left in it stay until they are swept
    assert lost > CUTS // 6


async def test_two_at_once_give_one_of_the_two(world: World) -> None:
    for _ in range(CUTS // 4):
        await asyncio.gather(
            world.put("f", chunks(NEW, 3000), world.known(len(NEW))),
            world.put("f", chunks(OLD, 3000), world.known(len(OLD))),
        )
        assert (world.work / "f").read_bytes() in (OLD, NEW)
    assert world.leftovers() == []


async def test_of_several_who_ask_for_the_same_state_one_finds_it(world: World) -> None:
    async def put(conditions: Conditions) -> bool:
        with world.room.share("t") as share:
            try:
                await world.uploads.put(
                    "s", "f", chunks(NEW, 50_000), length=None, mode=None, user=None, conditions=conditions, share=share
                )
            except errors.PreconditionFailed:
                return False
            return True

    for _ in range(3):
        (world.work / "f").unlink(missing_ok=True)
        made = await asyncio.gather(*(put(Conditions(if_none_match="*")) for _ in range(6)))
        assert sum(made) == 1
        async with world.reads.of("s", "f", user=None) as found:
            tag = found.stat.etag
        replaced = await asyncio.gather(*(put(Conditions(if_match=tag)) for _ in range(6)))
        assert sum(replaced) == 1
    assert world.leftovers() == []


async def test_a_download_whose_engine_is_cut_is_right_or_ends_before_its_end(world: World) -> None:
    (world.work / "f").write_bytes(NEW)
    right = 0
    for _ in range(CUTS):
        world.engine.trouble = 0.1
        with contextlib.suppress(errors.EngineUnavailable):
            assert await world.get("f") == NEW
            right += 1
    assert 0 < right < CUTS


async def test_a_file_that_is_replaced_while_it_is_read_never_comes_out_as_half_of_each(world: World) -> None:
    for _ in range(CUTS // 4):
        (world.work / "f").write_bytes(NEW)
        (world.work / "g").write_bytes(bytes(reversed(NEW)))
        got = bytearray()
        with pytest.raises(errors.EngineUnavailable):
            await read_and_replace(world, got, at=world.dice.randrange(len(NEW) - 7000))
        assert len(got) < len(NEW)  # told by its end that it is not whole


async def read_and_replace(world: World, got: bytearray, *, at: int) -> None:
    """Read a file, which is another one from byte ``at`` on."""
    with world.room.share("t") as share:
        async with world.reads.of("s", "f", user=None) as found:
            async for chunk in world.reads.chunks(found, part_of(found.stat, None, Conditions()), share):
                got += chunk
                if len(got) > at and (world.work / "g").exists():
                    os.replace(world.work / "g", world.work / "f")


async def test_a_file_of_one_piece_is_sent_while_it_comes(world: World) -> None:
    arrived = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield NEW[:5000]
        await arrived.wait()
        yield NEW[5000:]

    world.engine.first = arrived.set
    async with asyncio.timeout(30):
        await world.put("f", body(), len(NEW))
    assert (world.work / "f").read_bytes() == NEW
    assert world.engine.calls == ["run", "upload", "run"]


async def test_one_that_comes_too_slowly_goes_on_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "ONE_PIECE_SECONDS", 0.0)
    await world.put("f", chunks(NEW, 3000), len(NEW))
    assert (world.work / "f").read_bytes() == NEW
    assert world.engine.calls.count("upload") > 2
    assert world.leftovers() == []


async def test_the_first_bytes_are_taken_while_the_sandbox_is_asked(world: World) -> None:
    taken = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        yield b"x"
        taken.set()
        yield b"y"

    world.engine.ready = taken
    async with asyncio.timeout(30):
        await world.put("f", body())
    assert (world.work / "f").read_bytes() == b"xy"


async def test_what_can_not_be_written_is_told_before_the_first_byte_has_come(world: World) -> None:
    (world.work / "d").mkdir()
    never = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        await never.wait()
        yield b"x"

    async with asyncio.timeout(30):
        with pytest.raises(errors.IsADirectory):
            await world.put("d", body())
    await world.quiet()
    assert world.leftovers() == []


async def test_an_upload_takes_three_calls_and_a_large_one_one_more_a_piece(world: World) -> None:
    await world.put("f", chunks(b"x", 1))
    assert world.engine.calls == ["run", "upload", "run"]
    world.engine.calls.clear()
    await world.put("f", chunks(NEW, 9000))
    assert world.engine.calls.count("upload") == -(-len(NEW) // 9000)
    assert world.engine.calls.count("run") <= 2 + len(NEW) // 9000 // upload.JOINED
