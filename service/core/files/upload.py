"""Files into a sandbox: a file takes its name only when all of its bytes are there.

execd takes an upload whole before it writes anything, and then writes over its target. So the bytes go as they come, in
pieces, into a directory of the upload's own beside the target; a small command joins them, and renames what it joined.
The first bytes are taken while that directory is made; a file of one piece is sent on as it comes, and not joined.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, Generic, TypeAlias, TypeVar
from weakref import WeakValueDictionary

import msgspec

from service import errors
from service.core.claims.tasks import Tasks
from service.core.files import paths, scripts
from service.core.files.conditions import Conditions
from service.core.files.shell import Shell
from service.core.limits.room import Share
from service.core.model import identity
from service.messages import File
from service.ports import engine as port
from service.ports.engine import Engine
from service.ports.store import Store

T = TypeVar("T")

PIECE = 6 * 1024 * 1024
"""Bytes of a piece at most. execd keeps up to 32 MiB of an upload in its memory, more than that twice on its disk."""
ONE_PIECE = 16 * 1024 * 1024
"""Bytes of a file that may be sent as one piece, as it comes."""
ONE_PIECE_SECONDS = 5.0
"""For such a file to come. A slower one is cut into pieces as any other: it would keep others from their turn."""
UNDER_WAY = 3
"""Pieces of one upload that are sent at once: execd writes each to the disk before it answers."""
JOINED = 4
"""Pieces that are there before they are joined, while others come: what is left for the end takes no longer."""
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


Chunks: TypeAlias = Callable[[], AsyncIterator[bytes]]
"""Makes the bytes of a piece, from the first on each time."""
Send: TypeAlias = Callable[[str, int, Chunks], Awaitable[None]]
"""Sends a piece: its name, and how many bytes it has."""


class OnePiece:
    """A body of ``length`` bytes that is sent on as it comes. ``come``: what has come of it."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._size = 0
        self._news = asyncio.Event()
        self.come: deque[bytes] = deque()

    async def all_of(self, body: AsyncIterator[bytes], send: Send) -> bool:
        """Whether it was sent; if not, nothing of it got there. Raises what sending raises."""
        sending = asyncio.ensure_future(send(_name(0), self._length, self._as_it_comes))
        too_slow = asyncio.get_running_loop().call_later(ONE_PIECE_SECONDS, sending.cancel)
        try:
            async for chunk in body:
                self.come.append(chunk)
                self._size += len(chunk)
                if self._size > self._length or sending.done():
                    break
                if self._size == self._length:  # only the end is still to come, which is read as well
                    too_slow.cancel()
                self._news.set()
            too_slow.cancel()
            if self._size == self._length:
                await asyncio.wait({sending})
            if sending.cancelled() or not sending.done():
                return False
            sending.result()
            return True
        finally:
            too_slow.cancel()
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    async def _as_it_comes(self) -> AsyncIterator[bytes]:
        sent = 0
        while True:
            while sent < len(self.come):
                yield self.come[sent]
                sent += 1
            if self._size >= self._length:
                return
            self._news.clear()
            await self._news.wait()

    def held(self) -> int:
        """Bytes that have come and were not given on."""
        return sum(map(len, self.come))

    async def again(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """What has come, and then the rest of ``body``."""
        while self.come:
            yield self.come.popleft()
        async for chunk in body:
            yield chunk


class Pieces:
    """The bytes of one upload on their way into its directory: some pieces are sent while the next one comes."""

    def __init__(
        self,
        send: Send,
        share: Share,
        *,
        most: int,
        besides: Callable[[], int] = lambda: 0,
        join: Callable[[int], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """``share`` holds ``besides()`` bytes for others, and ``2 * LEAST`` for this. ``join``: joins the pieces up to
        a number.
        """
        self._send = send
        self._join = join
        self._share = share
        self._most = most
        self.besides = besides
        self._waiting: list[bytes] = []
        self._size = 0
        self._since = 0.0
        self._sending: dict[asyncio.Task[None], tuple[int, int]] = {}
        """Number and bytes."""
        self._sent = 0
        self._joined = 0
        self._joining: asyncio.Task[None] | None = None
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
        """More bytes; waits while there is no room for them. Raises ``FileTooLarge``."""
        self.total += len(chunk)
        if self.total > self._most:
            raise errors.FileTooLarge(f"The file is over {self._most} bytes; nothing is left of it.")
        await self._settle(UNDER_WAY)
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
        await self._settle(0)
        if self._joining is not None:
            await self._joining

    async def cancel(self) -> None:
        """Nothing is under way any more."""
        under_way = [*self._sending, *([] if self._joining is None else [self._joining])]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _settle(self, most: int) -> None:
        """No more than ``most`` pieces are under way. Raises what one of them raised."""
        while self._sending:
            for task in [task for task in self._sending if task.done()]:
                del self._sending[task]
                task.result()
            self._join_some()
            if len(self._sending) <= most:
                return
            await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)

    def _join_some(self) -> None:
        if self._joining is not None:
            if not self._joining.done():
                return
            self._joining.result()
        there = min((number for number, _ in self._sending.values()), default=self._sent)
        if self._join is not None and there - self._joined >= JOINED:
            self._joined = there
            self._joining = asyncio.ensure_future(self._join(there - 1))

    def _room_for(self, more: int) -> bool:
        size = self._size + more
        if size > PIECE:
            return False
        return size <= LEAST or self._share.take(self._held(size))

    def _held(self, size: int) -> int:
        return self.besides() + max(sum(size for _, size in self._sending.values()), LEAST) + max(size, LEAST)

    async def _flush(self) -> None:
        """Without room for more, one piece at a time."""
        await self._settle(UNDER_WAY - 1 if self._size >= PIECE // 2 else 0)
        piece, size = self._waiting, self._size
        self._waiting, self._size = [], 0
        sending = asyncio.ensure_future(self._send(_name(self._sent), size, lambda: _each(piece)))
        self._sending[sending] = (self._sent, size)
        self._sent += 1
        self._share.shrink(self._held(0))


class Way(Generic[T]):
    """An upload's own directory, by its ``token``, while it is made: ``making`` says what came of that."""

    def __init__(self, token: str, making: asyncio.Task[T]) -> None:
        self.token = token
        self._making = making

    async def made(self) -> T:
        """It is there. Raises what making it raised."""
        await asyncio.wait({self._making})
        return self._making.result()

    async def unless_refused(self, body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """``body``; raises what making the directory raises, however little of the body has come by then."""
        while not self._making.done():
            coming = asyncio.ensure_future(_next(body))
            try:
                await asyncio.wait({coming, self._making}, return_when=asyncio.FIRST_COMPLETED)
                if self._making.done():
                    self._making.result()
                await asyncio.wait({coming})
            finally:
                coming.cancel()
                await asyncio.gather(coming, return_exceptions=True)
            chunk = coming.result()
            if chunk is None:
                return
            yield chunk
        self._making.result()
        async for chunk in body:
            yield chunk


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
        own = "" if who is None else "1"

        async def prepare(token: str) -> tuple[bytes, str]:
            said = await self._shell.run(sandbox_id, scripts.PREPARE, path=path, token=token, user=who)
            match = conditions.for_put(said.stat if "stat" in said else None)
            return paths.shown(path, said.data("base"), said.data("where")), match

        async def join(number: int) -> None:
            await self._shell.run(
                sandbox_id, scripts.APPEND, token=way.token, user=who, timeout=JOIN, UPTO=str(number), OWN=own
            )

        await share.hold(2 * LEAST)
        async with self.directory(sandbox_id, prepare) as way:
            size = await self._sent_all(way.unless_refused(body), length, self.sender(sandbox_id, way), share, join)
            shown, match = await way.made()
            said = await self._shell.run(
                sandbox_id,
                scripts.FINISH,
                token=way.token,
                user=who,
                timeout=JOIN,
                changes=True,
                SIZE=str(size),
                MODE=mode or "",
                MATCH=match,
                OWN=own,
            )
        return Written(paths.file_of(shown, said.stat), said["made"] == "1", said.stat.etag)

    async def _sent_all(
        self,
        body: AsyncIterator[bytes],
        length: int | None,
        send: Send,
        share: Share,
        join: Callable[[int], Coroutine[Any, Any, None]],
    ) -> int:
        """All of it, in pieces; how many bytes. ``length``: how many are expected, where that is known."""
        pieces = Pieces(send, share, most=self.most, join=join)
        if length is not None and LEAST < length <= ONE_PIECE and share.take(length + 2 * LEAST):
            one = OnePiece(length)
            if await one.all_of(body, send):
                return length
            body, pieces.besides = one.again(body), one.held
        return await pieces.all_of(body)

    def check_length(self, length: int | None) -> None:
        """Raises ``FileTooLarge``."""
        if length is not None and length > self.most:
            raise errors.FileTooLarge(f"The file is over {self.most} bytes; nothing was written.")

    @contextlib.asynccontextmanager
    async def directory(
        self, sandbox_id: str, prepare: Callable[[str], Coroutine[Any, Any, T]]
    ) -> AsyncIterator[Way[T]]:
        """An upload's own directory, which ``prepare`` makes for a token. Where the block fails, nothing is left of it:
        at once, or, where its caller is gone or the sandbox does not answer, a little later.
        """
        token = identity.random_token()
        await self._store.plan("uploads", sandbox_id, after=scripts.STALE_UPLOAD + 60)
        making = asyncio.ensure_future(prepare(token))
        try:
            yield Way(token, making)
        except errors.OutcomeUnknown:  # what reads it may be at work
            raise
        except BaseException as error:
            removal = self._tasks.start(self._removed(sandbox_id, token, making), f"upload of {sandbox_id}", told=False)
            if isinstance(error, errors.OnceboxError):
                await asyncio.wait({removal}, timeout=CLEAN)
            raise

    async def _removed(self, sandbox_id: str, token: str, making: asyncio.Task[Any]) -> None:
        """Not before it is made. What can't be removed now, the sweeper finds."""
        await asyncio.wait({making})
        making.exception()
        with contextlib.suppress(errors.OnceboxError):
            await self._shell.run(sandbox_id, scripts.ABORT, token=token, timeout=CLEAN)

    def sender(self, sandbox_id: str, way: Way[Any]) -> Send:
        """Sends a piece into the directory, once that is there."""
        turn = self._turns.setdefault(sandbox_id, asyncio.Semaphore(AT_ONCE))
        to = f"{self._shell.directory.rstrip('/')}/.way.{way.token}/to"

        async def send(name: str, length: int, chunks: Chunks) -> None:
            await way.made()
            async with turn:
                await self._shell.asked(sandbox_id, self._sent(sandbox_id, f"{to}/{name}", length, chunks))

        return send

    async def _sent(self, sandbox_id: str, path: str, length: int, chunks: Chunks) -> None:
        """One piece. Sent again only where nothing of it got there: a late copy would empty what is being joined."""
        for left in reversed(range(TRIES)):
            try:
                await self._engine.upload(sandbox_id, path, chunks(), length=length, mode=0o644, timeout=SEND)
                break
            except port.NotReached:
                if not left:
                    raise
                await asyncio.sleep(TRY_AGAIN)


def _name(number: int) -> str:
    """Of a piece: another one each time that it is sent."""
    return f"{number:06d}.{identity.random_token()[:8]}"


async def _each(piece: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in piece:
        yield chunk


async def _next(body: AsyncIterator[bytes]) -> bytes | None:
    return await anext(body, None)
