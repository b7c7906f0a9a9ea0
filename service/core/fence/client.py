"""Fences in their sandboxes: what `core.fence.protocol` says, carried out through the engine.

Every method raises ``EngineError`` when the sandbox's daemon does not answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from weakref import WeakValueDictionary

import msgspec

from service.core.fence import protocol, startup
from service.core.fence.protocol import MERGED, Boot, End, Fence, Look, Ready, Streams, Voided
from service.core.model import identity
from service.ports.engine import Engine, FileMissing, Unclear

log = logging.getLogger("oncebox.fences")

FENCE_SIZE = 4096
"""Bytes of a fence or mark that are read: an honest one has some 200."""
SHORT = 10.0
"""Seconds for one of our own small commands."""
AT_ONCE = 8
"""Of them under way at once in one sandbox. More would wait in a slow daemon past their deadline, and be tried again:
with a thousand answers lost at once, none would ever be settled."""
ENVIRONMENT_SIZE = 1024 * 1024
"""Bytes of a daemon's environment that are read; one that is longer is left alone."""
REMEMBERED_FOR = 60.0
"""Seconds for which a daemon's startup variables are taken for what they were: its file of them may change."""
REMEMBERED = 4096
"""Sandboxes of which they are."""


class Surroundings(msgspec.Struct, frozen=True):
    """What a submission must know of its sandbox: the boot mark (None: none can be made), and what is inherited."""

    boot: Boot | None
    startup: Mapping[str, str] = {}
    """The daemon's own startup variables."""


class Fences:
    """The fences of every sandbox, in one directory each."""

    def __init__(self, engine: Engine, directory: str) -> None:
        self._engine = engine
        self._directory = directory
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._startup: dict[str, tuple[float, dict[str, str]]] = {}

    async def surroundings(self, sandbox_id: str) -> Surroundings:
        """The boot mark, as `boot` has it, and meanwhile, where they are not remembered, the startup variables."""
        return Surroundings(*await asyncio.gather(self.boot(sandbox_id), self.startup(sandbox_id)))

    async def startup(self, sandbox_id: str) -> Mapping[str, str]:
        """The startup variables that commands inherit from the sandbox's daemon, remembered for a while."""
        now = asyncio.get_running_loop().time()
        until, known = self._startup.get(sandbox_id, (0.0, None))
        if known is not None and now < until:
            return known
        if known is not None:  # one reads them again; the others go on with what was known
            self._startup[sandbox_id] = (now + SHORT, known)
        try:
            async with asyncio.timeout(SHORT):
                found = startup.acting(await self._inherited(sandbox_id))
        except TimeoutError as error:
            raise Unclear("the daemon's environment could not be read in time") from error
        self._startup.pop(sandbox_id, None)
        while len(self._startup) >= REMEMBERED:
            del self._startup[next(iter(self._startup))]
        self._startup[sandbox_id] = (asyncio.get_running_loop().time() + REMEMBERED_FOR, found)
        return found

    async def _inherited(self, sandbox_id: str) -> dict[str, str]:
        own = startup.of_daemon(await self._environment(sandbox_id, startup.ENVIRONMENT))
        path = own.get(startup.FILE_VARIABLE)
        added = startup.of_file(await self._environment(sandbox_id, path), own) if path else {}
        return {**own, **added}

    async def _environment(self, sandbox_id: str, path: str) -> bytes:
        """A file of variables; nothing where the daemon can't read it, or it is far too long."""
        try:
            found = await self._engine.read_lines(sandbox_id, path, ENVIRONMENT_SIZE)
        except FileMissing:
            return b""
        except Unclear as error:
            if error.code != "RUNTIME_ERROR":  # the daemon's own word on a file that it may not read
                raise
            return b""
        if found is None:
            log.warning("the environment of sandbox %s is too long to be read", sandbox_id)
        return found or b""

    async def boot(self, sandbox_id: str) -> Boot | None:
        """The sandbox's boot mark, made anew where it is missing; None where none can be made.

        One ranged read where it is there; it shows that the daemon is alive as well.
        """
        try:
            found = await self._engine.read_file(sandbox_id, protocol.boot_path(self._directory), 0, FENCE_SIZE)
        except FileMissing:
            return (await self.ready(sandbox_id)).boot
        return protocol.parse_boot(found.data) or (await self.ready(sandbox_id)).boot

    async def ready(self, sandbox_id: str) -> Ready:
        """Run the readiness command: it makes the mark where there is none, and tells it."""
        return protocol.parse_ready(
            await self._run(sandbox_id, protocol.ready(self._directory, identity.random_token()))
        )

    def wrapped(
        self,
        command: str,
        env: Mapping[str, str],
        *,
        token: str,
        fingerprint: str,
        boot: str | None,
        timeout: int,
        inherited: Mapping[str, str],
        words: bool = False,
        streams: Streams = MERGED,
    ) -> tuple[str, dict[str, str]]:
        """The text and the environment to send to execd. ``inherited``: the daemon's startup variables."""
        return protocol.wrapper(
            command,
            env,
            directory=self._directory,
            token=token,
            fingerprint=fingerprint,
            boot=boot,
            timeout=timeout,
            inherited=inherited,
            words=words,
            streams=streams,
        )

    async def write_input(self, sandbox_id: str, data: bytes) -> str:
        """Write what a command is to read into a new file, for every user of the sandbox; its path."""
        path = protocol.input_path(self._directory, identity.random_token())
        await self._engine.upload(sandbox_id, path, data, length=len(data), mode=0o444)
        return path

    async def read(self, sandbox_id: str, token: str) -> Fence | None:
        """The fence; None where there is none."""
        try:
            found = await self._engine.read_file(sandbox_id, protocol.fence_path(self._directory, token), 0, FENCE_SIZE)
        except FileMissing:
            return None
        return protocol.parse_fence(found.data)

    async def void(self, sandbox_id: str, token: str, boot: str) -> Voided:
        """Make the fence as a void, unless it is there."""
        text = protocol.void(self._directory, token, boot, identity.random_token())
        return protocol.parse_void(await self._run(sandbox_id, text))

    async def look(self, sandbox_id: str, token: str) -> Look:
        """The fence, the mark, and the processes that carry the token."""
        return protocol.parse_look(await self._run(sandbox_id, protocol.look(self._directory, token)))

    async def end(self, sandbox_id: str, token: str) -> End:
        """End the run's process group."""
        return protocol.parse_end(await self._run(sandbox_id, protocol.end(self._directory, token)))

    async def clean(self, sandbox_id: str, tokens: list[str], *, age: int) -> None:
        """Remove the fences and outputs of ended, recorded jobs that are older than ``age`` seconds."""
        await self._run(sandbox_id, protocol.clean(self._directory, tokens, age=age))

    async def _run(self, sandbox_id: str, text: str) -> str:
        turn = self._turns.setdefault(sandbox_id, asyncio.Semaphore(AT_ONCE))
        async with turn:
            blank = dict.fromkeys(await self.startup(sandbox_id), "")
            return (await self._engine.run_short(sandbox_id, text, timeout=SHORT, env=blank)).stdout
