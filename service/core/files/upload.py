"""Files into a sandbox: a file takes its name only when all of its bytes are there.

execd takes an upload whole before it writes anything, and then writes over its target. So the bytes go as they come, in
pieces, into a directory of the upload's own beside the target; a small command joins them, and renames what it joined.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from weakref import WeakValueDictionary

import msgspec

from service import errors
from service.core.claims.tasks import Tasks
from service.core.files import paths, scripts
from service.core.files.conditions import Conditions
from service.core.files.shell import Said, Shell
from service.core.limits.room import Share
from service.core.model import identity
from service.core.sandboxes.users import User
from service.messages import File
from service.ports import engine as port
from service.ports.engine import Engine
from service.ports.store import Store

PIECE = 8 * 1024 * 1024
"""Bytes of a piece at most. execd keeps up to 32 MiB of an upload in its memory, more than that twice on its disk."""
LEAST = 256 * 1024
"""Bytes that an upload has room for in any case; the rest of a piece is taken as long as the replica has it."""
PIECE_SECONDS = 60.0
"""Seconds after which a piece is sent however short it is: a directory that nothing came into for long is nobody's."""
AT_ONCE = 4
"""Pieces under way at once in one sandbox."""
SEND = 120.0
"""Seconds for one piece."""
JOIN = 300.0
"""Seconds for joining the pieces of the largest file."""
CLEAN = 10.0
TRIES = 3
"""For a piece that did not reach the sandbox."""
TRY_AGAIN = 0.3


class Written(msgspec.Struct, frozen=True):
    """A file that was put. ``made``: there was none."""

    file: File
    made: bool
    etag: str


class Pieces:
    """The bytes of one upload on their way into its directory; one piece is sent while the next one comes."""

    def __init__(
        self, send: Callable[[str, list[bytes]], Awaitable[None]], share: Share, *, most: int, besides: int = 0
    ) -> None:
        """``share`` holds ``besides`` bytes for others, and ``2 * LEAST`` for this."""
        self._send = send
        self._share = share
        self._most = most
        self._besides = besides
        self._waiting: list[bytes] = []
        self._size = 0
        self._since = 0.0
        self._sending: asyncio.Task[None] | None = None
        self._under_way = 0
        self._sent = 0
        self.total = 0
        """Bytes so far."""

    async def all_of(self, body: AsyncIterator[bytes]) -> int:
        """Send everything; how many bytes. Raises ``FileTooLarge``, and what sending raises."""
        try:
            async for chunk in body:
                await self.add(chunk)
            await self.end()
        finally:
            await self.cancel()
        return self.total

    async def add(self, chunk: bytes) -> None:
        """More bytes; waits while two pieces are full. Raises ``FileTooLarge``."""
        self.total += len(chunk)
        if self.total > self._most:
            raise errors.FileTooLarge(f"The file is over {self._most} bytes; nothing is left of it.")
        if self._sending is not None and self._sending.done():
            self._sending.result()
        if self._size and not self._room_for(len(chunk)):
            await self._flush()
        self._waiting.append(chunk)
        now = asyncio.get_running_loop().time()
        self._since = self._since if self._size else now
        self._size += len(chunk)
        if self._size >= PIECE or now - self._since > PIECE_SECONDS:
            await self._flush()

    async def end(self) -> None:
        """All of it is there."""
        if self._size:
            await self._flush()
        if self._sending is not None:
            await self._sending

    async def cancel(self) -> None:
        """Nothing is under way any more."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    def _room_for(self, more: int) -> bool:
        size = self._size + more
        if size > PIECE:
            return False
        return size <= LEAST or self._share.take(self._besides + max(self._under_way, LEAST) + size)

    async def _flush(self) -> None:
        if self._sending is not None:
            await self._sending
        piece, self._under_way = self._waiting, self._size
        self._waiting, self._size = [], 0
        self._share.shrink(self._besides + max(self._under_way, LEAST) + LEAST)
        name = f"{self._sent:06d}.{identity.random_token()[:8]}"
        self._sent += 1
        self._sending = asyncio.ensure_future(self._send(name, piece))


class Uploads:
    """Puts files into sandboxes. ``most``: bytes of one file."""

    def __init__(self, engine: Engine, store: Store, shell: Shell, tasks: Tasks, *, most: int) -> None:
        self._engine = engine
        self._store = store
        self._shell = shell
        self._tasks = tasks
        self.most = most
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def put(
        self,
        sandbox_id: str,
        path: str,
        body: AsyncIterator[bytes],
        *,
        length: int | None,
        mode: str | None,
        user: str | None,
        conditions: Conditions,
        share: Share,
    ) -> Written:
        """Write a file, whole or not at all; what lies under ``path`` stays until then. Again is harmless.

        Parents are made. A link's target is written. ``length``: bytes, where they are known. Raises the problems of
        `shell`, ``PreconditionFailed``, ``FileTooLarge``, ``RateLimited``; whatever is raised, nothing is left.
        """
        path, mode = paths.checked(path), paths.octal("mode", mode)
        self.check_length(length)
        who = await self._shell.user(sandbox_id, user)
        await share.hold(2 * LEAST)
        async with self.directory(sandbox_id, path, who, scripts.PREPARE) as (said, token):
            there = said.stat if "stat" in said else None
            match = conditions.for_put(there)
            shown = paths.shown(path, said.data("base"), said.data("where"))
            size = await self.fill(sandbox_id, token, body, share)
            said = await self._shell.run(
                sandbox_id,
                scripts.FINISH,
                token=token,
                user=who,
                timeout=JOIN,
                SIZE=str(size),
                MODE=mode or "",
                MATCH=match,
                OWN="" if who is None else "1",
            )
        return Written(paths.file_of(shown, said.stat), said["made"] == "1", said.stat.etag)

    def check_length(self, length: int | None) -> None:
        """Raises ``FileTooLarge``."""
        if length is not None and length > self.most:
            raise errors.FileTooLarge(f"The file is over {self.most} bytes; nothing was written.")

    @contextlib.asynccontextmanager
    async def directory(
        self, sandbox_id: str, path: str, who: User | None, script: str
    ) -> AsyncIterator[tuple[Said, str]]:
        """An upload's own directory, made by ``script``: what that said, and its token. Where the block fails, nothing
        is left of it: at once, or, where its caller is gone or the sandbox does not answer, a little later.
        """
        token = identity.random_token()
        await self._store.plan("uploads", sandbox_id, after=scripts.STALE_UPLOAD + 60)
        try:
            yield await self._shell.run(sandbox_id, script, path=path, token=token, user=who), token
        except errors.OutcomeUnknown:  # what reads it may be at work
            raise
        except BaseException as error:
            removal = self._tasks.start(self._removed(sandbox_id, token), f"upload of {sandbox_id}", told=False)
            if isinstance(error, errors.OnceboxError):
                await asyncio.wait({removal}, timeout=CLEAN)
            raise

    async def _removed(self, sandbox_id: str, token: str) -> None:
        """What can't be removed now, the sweeper finds."""
        with contextlib.suppress(errors.OnceboxError):
            await self._shell.run(sandbox_id, scripts.ABORT, token=token, timeout=CLEAN)

    async def fill(self, sandbox_id: str, token: str, body: AsyncIterator[bytes], share: Share) -> int:
        """Send all of ``body`` into the directory; how many bytes."""
        return await Pieces(self.sender(sandbox_id, token), share, most=self.most).all_of(body)

    def sender(self, sandbox_id: str, token: str) -> Callable[[str, list[bytes]], Awaitable[None]]:
        """Sends a piece into the directory, under a name."""
        turn = self._turns.setdefault(sandbox_id, asyncio.Semaphore(AT_ONCE))
        to = f"{self._shell.directory.rstrip('/')}/.way.{token}/to"

        async def send(name: str, piece: list[bytes]) -> None:
            async with turn:
                await self._shell.asked(sandbox_id, self._sent(sandbox_id, f"{to}/{name}", piece))

        return send

    async def _sent(self, sandbox_id: str, path: str, piece: list[bytes]) -> None:
        """One piece. Sent again only where nothing of it got there: a late copy would empty what is being joined."""
        length = sum(map(len, piece))
        for left in reversed(range(TRIES)):
            try:
                await self._engine.upload(sandbox_id, path, _each(piece), length=length, mode=0o644, timeout=SEND)
                break
            except port.NotReached:
                if not left:
                    raise
                await asyncio.sleep(TRY_AGAIN)


async def _each(piece: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in piece:
        yield chunk
