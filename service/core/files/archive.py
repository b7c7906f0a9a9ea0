"""Directories in and out as tar.

In: the archive is checked as it passes (`tar`), lies in the sandbox, and is then unpacked there by a job of Oncebox's
own, which runs once. Out: a tar is made in the sandbox, and read while it grows.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import msgspec

from service import errors
from service.core.claims.tasks import Tasks
from service.core.files import paths, scripts
from service.core.files.shell import Said, Shell, garbled, parsed, problem_of
from service.core.files.tar import CHUNK, Packed, repack
from service.core.files.upload import LEAST, Pieces, Uploads, Way
from service.core.jobs.service import Jobs
from service.core.limits.room import UNBOUNDED, Room, Share
from service.core.model import identity
from service.core.model.answers import Answer
from service.core.sandboxes.users import User
from service.messages import Job, JobOutput, JobState, SubmitJob, Unpacked
from service.ports.engine import Engine, FileMissing
from service.ports.store import Record

T = TypeVar("T")

READERS = 64
"""Archives that one replica takes in at once; a half of them of one tenant, see `core.room`."""
ROOM = 4 * 1024 * 1024
"""Bytes that stand for one archive under way, what `tar` holds included."""
WAIT = 8.0
"""Seconds for which an answer waits for what is unpacked."""
TIMEOUT = 3600
"""Seconds for unpacking."""
PACKING = 20.0
FIRST_LOOKS = (0.05, 0.05, 0.05, 0.1, 0.1, 0.1, 0.15, 0.15, 0.2)
"""Seconds between the first looks at what unpacks."""
PIECE = 1024 * 1024
"""Bytes of a growing archive that are read at once."""
LOOKS = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Seconds between two looks at one that does not grow."""
SILENT = 120.0
"""Seconds after which one that does not grow, and has no end, counts as given up."""


class Archives:
    """Takes archives into sandboxes, and makes them there. ``jobs`` runs what unpacks; ``look`` asks how it stands."""

    def __init__(
        self,
        engine: Engine,
        shell: Shell,
        uploads: Uploads,
        jobs: Jobs,
        tasks: Tasks,
        *,
        look: Callable[[str], Awaitable[Record | None]],
    ) -> None:
        self._look = look
        self._engine = engine
        self._shell = shell
        self._uploads = uploads
        self._jobs = jobs
        self._tasks = tasks
        self._readers = Room(READERS, refusal=_too_many)

    # -- in

    async def unpack(
        self,
        tenant: str,
        sandbox_id: str,
        path: str,
        body: AsyncIterator[bytes],
        *,
        length: int | None,
        user: str | None,
        share: Share,
    ) -> Unpacked | Job:
        """What was unpacked into a directory, or, where that takes longer than ``WAIT``, the job that does it.

        Into one that is not there: all or nothing. Into one that is: each file whole, name by name; a failure leaves
        those that were put, and the same again completes it. Raises ``InvalidRequest`` for what leads outside, before
        anything is unpacked, and what `upload` raises.
        """
        path = paths.checked(path)
        self._uploads.check_length(length)
        who = await self._shell.user(sandbox_id, user)
        with self._readers.share(tenant) as turn:
            await turn.hold(1)
            await share.hold(ROOM + 2 * LEAST)

            async def prepare(token: str) -> None:
                await self._shell.run(sandbox_id, scripts.PREPARE_UNPACK, path=path, token=token, user=who)

            async with self._uploads.directory(sandbox_id, prepare) as way:
                packed = await self._checked(sandbox_id, way, body, share)
                share.close()
                await way.made()
                job = await self._submitted(tenant, sandbox_id, way.token, packed, user)
        return await self._ended(tenant, job, packed)

    async def _checked(self, sandbox_id: str, way: Way[None], body: AsyncIterator[bytes], share: Share) -> Packed:
        """All of the archive, checked, lies in the sandbox."""
        sent = Pieces(self._uploads.sender(sandbox_id, way), share, most=2 * self._uploads.most, besides=lambda: ROOM)
        body = way.unless_refused(body)
        beside = Beside()
        waiting: list[bytes] = []
        size = 0

        def chunks() -> Iterator[bytes]:
            while (chunk := beside.call(_next(body))) is not None:
                yield chunk

        def write(data: bytes, *, now: bool = False) -> None:
            nonlocal size
            waiting.append(data)
            size += len(data)
            if size >= CHUNK or now:
                beside.call(sent.add(b"".join(waiting)))
                waiting.clear()
                size = 0

        def work() -> Packed:
            packed = repack(chunks(), write, most=self._uploads.most)
            write(b"", now=True)
            return packed

        try:
            packed = await beside.run(work)
            await sent.end()
        finally:
            await sent.cancel()
        return packed

    async def _submitted(
        self, tenant: str, sandbox_id: str, token: str, packed: Packed, user: str | None
    ) -> Answer[Job]:
        mode = "" if packed.mode is None else f"{packed.mode:o}"
        settings = f"ONCEBOX_TOKEN={token} ONCEBOX_FILES={packed.named} ONCEBOX_ROOT={mode} ONCEBOX_PATH=."
        text = f": oncebox unpacks {packed.files} members, {packed.bytes} bytes\n{settings}\n"
        more = {} if user is None else {"user": user}
        request = SubmitJob(
            sandbox_id=sandbox_id,
            command=text + self._shell.text(scripts.UNPACK),
            timeout=TIMEOUT,
            **more,  # type: ignore[arg-type]
        )
        return await self._jobs.submit(tenant, request, f"unpack-{token}")

    async def _ended(self, tenant: str, answer: Answer[Job], packed: Packed) -> Unpacked | Job:
        job: Job = answer.value
        loop = asyncio.get_running_loop()
        deadline = loop.time() + WAIT
        for delay in FIRST_LOOKS:  # most are unpacked in no time, and a poll by the pace of all jobs would come later
            await asyncio.sleep(delay)
            record = await self._look(job.command_id)
            if record is None or not record.state.active:
                break
        cursor: str | None = None
        text = ""
        while True:
            page = await self._jobs.get(
                tenant, job.command_id, cursor=cursor, wait=max(0.0, deadline - loop.time()), share=UNBOUNDED
            )
            seen = page.whole()
            assert isinstance(seen, JobOutput)
            text = seen.output if seen.replace else text + seen.output
            cursor = seen.cursor
            if seen.state.terminal and (cursor is None or loop.time() >= deadline):
                break
            if loop.time() >= deadline:
                return msgspec.convert(msgspec.to_builtins(seen), Job)
        if seen.state is JobState.EXITED and seen.exit_code == 0:
            return Unpacked(files=packed.files, bytes=packed.bytes)
        raise _failure(seen, text)

    # -- out

    @contextlib.asynccontextmanager
    async def pack(self, sandbox_id: str, path: str, *, user: str | None) -> AsyncIterator[Packing]:
        """The tar of a directory, made while the block lasts; it can be read after a few seconds at the latest."""
        path = paths.checked(path)
        who = await self._shell.user(sandbox_id, user)
        token = identity.random_token()
        try:
            said = await self._shell.run(sandbox_id, scripts.PACK, path=path, token=token, user=who, timeout=PACKING)
            way = f"{self._shell.directory.rstrip('/')}/.way.{token}"
            yield Packing(self._engine, self._shell, sandbox_id, way, _size(said), _name(path, said))
        finally:
            self._tasks.start(self._removed(sandbox_id, token, who), f"archive of {sandbox_id}", told=False)

    async def _removed(self, sandbox_id: str, token: str, who: User | None) -> None:
        with contextlib.suppress(errors.OnceboxError):
            await self._shell.run(sandbox_id, scripts.ABORT, token=token, user=who)


class Packing:
    """A tar that is made in a sandbox. ``size``: bytes, where it is whole already; ``name``: for people."""

    def __init__(self, engine: Engine, shell: Shell, sandbox_id: str, way: str, size: int | None, name: str) -> None:
        self._engine = engine
        self._shell = shell
        self._sandbox_id = sandbox_id
        self._way = way
        self.size = size
        self.name = name

    async def chunks(self, share: Share) -> AsyncGenerator[bytes, None]:
        """Its bytes, as they are made and taken. Raises ``EngineUnavailable`` where it does not come to its end."""
        await share.hold(2 * PIECE)
        loop = asyncio.get_running_loop()
        offset, idle, since = 0, 0, loop.time()
        ended = self.size is not None
        while self.size is None or offset < self.size:
            data = await self._shell.asked(self._sandbox_id, self._read("tar", offset, PIECE))
            if data:
                offset, idle, since = offset + len(data), 0, loop.time()
                yield data
            elif ended:
                break
            else:
                ended = await self._ended()
                if not ended and loop.time() - since > SILENT:
                    raise garbled()
                await asyncio.sleep(0 if ended else LOOKS[min(idle, len(LOOKS) - 1)])
                idle += 1
        if self.size is not None and offset < self.size:
            raise garbled()

    async def _ended(self) -> bool:
        """It is whole. Raises ``EngineUnavailable`` where it failed."""
        code = await self._shell.asked(self._sandbox_id, self._read("end", 0, 16))
        if code and code.strip() != b"0":
            raise errors.EngineUnavailable("The archive could not be made to its end.")
        return bool(code)

    async def _read(self, name: str, offset: int, length: int) -> bytes:
        try:
            return (await self._engine.read_file(self._sandbox_id, f"{self._way}/{name}", offset, length)).data
        except FileMissing:
            return b""


async def _next(body: AsyncIterator[bytes]) -> bytes | None:
    return await anext(body, None)


class _Over(Exception):
    """Nobody waits for the work any more."""


class Beside:
    """Blocking work in a thread of its own, that calls back into the event loop, one call at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._pending: Future[Any] | None = None
        self._over = False

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """In the thread: what ``work`` comes to in the event loop."""
        with self._lock:
            if self._over:
                work.close()
                raise _Over
            pending: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._pending = pending
        return pending.result()

    async def run(self, work: Callable[[], T]) -> T:
        """What ``work`` comes to. Cancelled, it ends at its next call."""
        done: asyncio.Future[T] = self._loop.create_future()

        def tell(result: T | None, error: BaseException | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)  # type: ignore[arg-type]
            else:
                done.set_exception(error)

        def target() -> None:
            result, error = None, None
            try:
                result = work()
            except BaseException as raised:  # noqa: BLE001 - told to whoever waits
                error = _Over() if isinstance(raised, CancelledError) else raised
            with contextlib.suppress(RuntimeError):  # the event loop is gone
                self._loop.call_soon_threadsafe(tell, result, error)

        threading.Thread(target=target, name="archive", daemon=True).start()
        try:
            return await done
        finally:
            with self._lock:
                self._over = True
                if self._pending is not None:
                    self._pending.cancel()


def _size(said: Said) -> int | None:
    size = said.lines.get("size", "")
    return int(size) if size.isdecimal() else None


def _name(path: str, said: Said) -> str:
    last = paths.shown(path, said.data("base"), said.data("where")).rpartition(b"/")[2]
    return (last.decode("utf-8", "replace") or "root") + ".tar"


def _failure(job: Job, text: str) -> errors.OnceboxError:
    said = parsed(text)
    if job.state is not JobState.EXITED or "end" not in said:
        return errors.OutcomeUnknown(
            "What unpacks the archive ended before it was done; the same request again completes it.",
            command_id=job.command_id,
            sandbox_id=job.sandbox_id,
            retry_after=2,
        )
    problem = problem_of(said, said["end"])
    placed = said.lines.get("placed", "")
    if placed.isdecimal():
        problem.detail += f" {placed} of its files were put; the same request again completes it."
    problem.command_id = job.command_id
    return problem


def _too_many() -> errors.RateLimited:
    return errors.RateLimited("This replica takes in as many archives as it can; come back later.", retry_after=5)
