"""Files out of a sandbox, by ranges, as their reader takes them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec

from service import errors
from service.core.claims.tasks import Tasks
from service.core.files import paths, scripts
from service.core.files.conditions import Conditions
from service.core.files.shell import Shell
from service.core.limits.room import Share
from service.core.model import identity
from service.core.sandboxes.users import User
from service.ports.engine import Download, Engine, EngineError, FileMissing, NotReached, Unclear

RANGE = 16 * 1024 * 1024
"""Bytes asked of a sandbox at a time: what a reader that leaves did not take is read on behind it."""
ROOM = 512 * 1024
"""Bytes that stand for one reader: what is on its way from the sandbox and to the reader."""
SLOW = 300.0
"""Seconds for one range, also while its reader takes nothing; then it is asked for again from there on."""
TRIES = 5
"""Ranges in a row that brought nothing."""
TRY_AGAIN = 0.3

Range = tuple[int | None, int | None]


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A file that can be read."""

    sandbox_id: str
    path: str
    """As it was asked for, checked."""
    user: User | None
    at: str
    """The path to ask the sandbox's daemon for."""
    way: str | None
    """The token of the way that was made for that."""
    name: str
    """Its last name, for people."""
    stat: paths.Stat


class Part(msgspec.Struct, frozen=True):
    """What of a file is sent: from ``start`` up to ``end``. ``unchanged``: nothing, the reader has it."""

    start: int
    end: int
    partial: bool = False
    unchanged: bool = False


def part_of(found: paths.Stat, wanted: Range | None, conditions: Conditions) -> Part:
    """Raises ``RangeNotSatisfiable``, ``PreconditionFailed``."""
    if conditions.unchanged(found):
        return Part(0, 0, unchanged=True)
    size = found.size
    if wanted is None or not conditions.range_counts(found):
        return Part(0, size)
    first, last = wanted
    if first is None:
        start, end = max(0, size - (last or 0)), size
    else:
        start, end = first, size if last is None else min(size, last + 1)
    if start >= size:
        error = errors.RangeNotSatisfiable(f"The file has {size} bytes.")
        error.size = size
        raise error
    return Part(start, end, partial=True)


class Reads:
    """Reads files of sandboxes."""

    def __init__(self, engine: Engine, shell: Shell, tasks: Tasks) -> None:
        self._engine = engine
        self._shell = shell
        self._tasks = tasks

    @contextlib.asynccontextmanager
    async def of(self, sandbox_id: str, path: str, *, user: str | None, read: bool = True) -> AsyncIterator[Found]:
        """A regular file, links followed, looked at before anything opens it. ``read``: its bytes are wanted too.

        Raises the problems of `shell`.
        """
        path = paths.checked(path)
        who = await self._shell.user(sandbox_id, user)
        token = identity.random_token()
        said = await self._shell.run(
            sandbox_id, scripts.READ, path=path, token=token, user=who, WAY="1" if read else ""
        )
        where = said.data("where")
        way = f"{self._shell.directory.rstrip('/')}/.way.{token}/to" if "way" in said else None
        found = Found(
            sandbox_id=sandbox_id,
            path=path,
            user=who,
            at=way or where.decode("utf-8", "surrogateescape"),
            way=token if way else None,
            name=path.rstrip("/").rpartition("/")[2],
            stat=said.stat,
        )
        try:
            yield found
        finally:
            if way is not None:
                self._tasks.start(self._removed(sandbox_id, token), f"way in {sandbox_id}", told=False)

    async def _removed(self, sandbox_id: str, token: str) -> None:
        with contextlib.suppress(errors.OnceboxError):
            await self._shell.run(sandbox_id, scripts.ABORT, token=token)

    async def chunks(self, found: Found, part: Part, share: Share) -> AsyncGenerator[bytes, None]:
        """The bytes of ``part``. Nothing is read ahead of its reader but what is on its way.

        A file that is replaced between two ranges must not come out as half of each: the last bytes are held back until
        it was looked at again. Raises ``EngineUnavailable`` where it is not the same, or can't be had.
        """
        await share.hold(ROOM)
        offset, asked, failed = part.start, 0, 0
        held = b""
        while offset < part.end:
            asked, before = asked + 1, offset
            length = min(RANGE, part.end - offset)
            try:
                async with self._engine.download(found.sandbox_id, found.at, offset, length, timeout=SLOW) as download:
                    self._same(found, download)
                    async for piece in download.pieces:
                        offset += len(piece)
                        if held:
                            yield held
                        held = piece
            except (EngineError, TimeoutError) as error:
                if not isinstance(error, NotReached | Unclear | FileMissing | TimeoutError):
                    await self._shell.asked(found.sandbox_id, _raised(error))
                failed = 0 if offset > before else failed + 1
                if isinstance(error, FileMissing) or failed >= TRIES:
                    raise _cut() from error
                await asyncio.sleep(TRY_AGAIN)
        if asked > 1:
            await self._look_again(found)
        if held:
            yield held

    def _same(self, found: Found, download: Download) -> None:
        if download.size != found.stat.size:
            raise _changed()

    async def _look_again(self, found: Found) -> None:
        said = await self._shell.run(found.sandbox_id, scripts.READ, path=found.path, user=found.user, WAY="")
        if said.stat.etag != found.stat.etag:
            raise _changed()


async def _raised(error: EngineError) -> None:
    raise error


def _changed() -> errors.EngineUnavailable:
    return errors.EngineUnavailable("The file was changed while it was read.", retry_after=1)


def _cut() -> errors.EngineUnavailable:
    return errors.EngineUnavailable("The rest of the file could not be had.", retry_after=2)
