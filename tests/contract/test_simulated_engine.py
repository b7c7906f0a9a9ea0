"""The simulated engine gives the answers of the local one: the same exchanges with both, told alike."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Awaitable
from pathlib import Path
from typing import cast

import pytest

from service.core.fence.client import Fences
from service.engine import OpenSandboxEngine
from service.ports.engine import CommandSpec, CommandStatus, Engine, EngineError, SandboxSpec
from tests.integration.core_rig import KEY, local_engine
from tests.simulation.client import SimClient
from tests.simulation.engine import SimEngine
from tests.simulation.loop import Host, VirtualLoop
from tests.simulation.network import Network

SHORT, LONG = "short", "long"
REAL = {SHORT: "echo 'm 0'; exit 3", LONG: "exec sleep 60"}
SIMULATED = {SHORT: "run m 0.01 3 1", LONG: "run m 60 0 0"}


class Exchanges:
    """What is asked of an engine, and what it says, but for ids, times and addresses."""

    def __init__(self, engine: Engine, commands: dict[str, str], directory: str) -> None:
        self.engine = engine
        self.commands = commands
        self.fences = Fences(engine, directory)
        self.said: list[str] = []
        self.box = ""
        self.boot = ""

    async def run(self) -> list[str]:
        """All of them."""
        spec = SandboxSpec(image="python:3.12", entrypoint=["sleep", "600"], cpu="1", memory="1Gi", timeout=600)
        self.box = (await self.engine.create_sandbox(spec)).id
        made, again = [await self.fences.ready(self.box) for _ in range(2)]
        assert made.boot is not None
        self.boot = made.boot.text
        self.say("the mark stays", made == again, made.boot.start == made.start)
        await self._twice()
        await self._voids()
        await self._ends()
        await self._refusals()
        return self.said

    def say(self, *words: object) -> None:
        """Note an answer."""
        self.said.append(" ".join(str(word) for word in words).replace(self.boot or "\0", "BOOT"))

    async def submit(self, token: str, command: str, *, boot: str | None = None, timeout: int = 30) -> str:
        """A command behind a fence."""
        text, env = self.fences.wrapped(
            self.commands[command],
            {},
            token=token,
            fingerprint="f",
            boot=boot or self.boot,
            timeout=timeout,
            inherited={},
        )
        return await self.engine.submit(self.box, CommandSpec(command=text, timeout=timeout, env=env))

    async def over(self, id: str) -> CommandStatus:
        """The status at the end."""
        async with asyncio.timeout(60):
            while (status := await self.engine.status(self.box, id)).running:
                await asyncio.sleep(0.02)
        return status

    async def tell(self, what: str, id: str, token: str) -> None:
        """How a command ended, what it printed, and what its fence says."""
        status = await self.over(id)
        printed = await self.engine.read_file(self.box, self.engine.output_path(id), 0, 1000)
        fence = await self.fences.read(self.box, token)
        noted = fence and (fence.kind, fence.fingerprint, fence.timeout, fence.exit_code, fence.boot)
        ours = fence is not None and fence.log == self.engine.output_path(id)
        named = token in status.content
        self.say(
            what,
            status.exit_code,
            status.signal,
            printed.data.decode(),
            printed.size == len(printed.data),
            noted,
            ours,
            named,
        )

    async def refused(self, what: str, asked: Awaitable[object]) -> None:
        """The class of what is raised."""
        try:
            self.say(what, await asked)
        except EngineError as error:
            self.say(what, type(error).__name__)

    async def _twice(self) -> None:
        token = "1" * 32
        first = await self.submit(token, SHORT)
        await self.tell("a run", first, token)
        await self.tell("its copy", await self.submit(token, SHORT), token)
        look = await self.fences.look(self.box, token)
        self.say("looked at", look.alive, look.fence and look.fence.exit_code)
        self.say("never made", await self.fences.read(self.box, "2" * 32))

    async def _voids(self) -> None:
        token = "3" * 32
        for what in ("a void", "again"):
            voided = await self.fences.void(self.box, token, self.boot)
            self.say(what, voided.outcome, voided.fence)
        await self.tell("after it", await self.submit(token, SHORT), token)
        ran = await self.fences.void(self.box, "1" * 32, self.boot)
        self.say("of a run", ran.outcome, ran.fence and (ran.fence.kind, ran.fence.exit_code))
        self.say("under another mark", (await self.fences.void(self.box, "4" * 32, "other 1")).outcome)
        await self.tell("under another mark", await self.submit("4" * 32, SHORT, boot="other 1"), "4" * 32)

    async def _ends(self) -> None:
        await self.tell("timed out", await self.submit("5" * 32, LONG, timeout=1), "5" * 32)
        id = await self.submit("6" * 32, LONG)
        await self._seen_alive("6" * 32)
        await self.engine.interrupt(self.box, id)
        await self.tell("interrupted", id, "6" * 32)
        id = await self.submit("7" * 32, LONG)
        await self._seen_alive("7" * 32)
        self.say("ended by its fence", await self.fences.end(self.box, "7" * 32))
        await self.tell("then", id, "7" * 32)
        self.say("ended again", await self.fences.end(self.box, "7" * 32))

    async def _seen_alive(self, token: str) -> None:
        async with asyncio.timeout(60):
            while True:
                look = await self.fences.look(self.box, token)
                if look.alive and look.fence is not None and look.fence.kind == "run":
                    await asyncio.sleep(0.3)  # the wrapper has begun its command, and handles signals
                    return

    async def _refusals(self) -> None:
        engine, box = self.engine, self.box
        done = await self.submit("8" * 32, SHORT)
        await self.over(done)
        await self.refused("interrupt of the ended", engine.interrupt(box, done))
        await self.refused("interrupt of the unknown", engine.interrupt(box, "9" * 32))
        await self.refused("status of the unknown", engine.status(box, "9" * 32))
        await self.refused("no such file", engine.read_file(box, "/tmp/nothing-there", 0, 10))
        past = await engine.read_file(box, engine.output_path(done), 100, 10)
        self.say("past the end", past.data, past.size)
        await self.refused("resume of the running", engine.resume_sandbox(box))
        await engine.pause_sandbox(box)
        await self.refused("pause of the paused", engine.pause_sandbox(box))
        self.say("paused", (await engine.get_sandbox(box)).state)
        await engine.resume_sandbox(box)
        await engine.ping(box)
        await engine.delete_sandbox(box)
        await self.refused("deleted", engine.get_sandbox(box))
        await self.refused("its daemon", engine.ping(box))
        await engine.delete_sandbox(box)


async def _on_the_local_engine(root: Path) -> list[str]:
    with local_engine(str(root), "--isolation", "plain") as url:
        engine = OpenSandboxEngine(url, api_key=KEY, proxy="auto")
        try:
            return await Exchanges(engine, REAL, f"/tmp/oncebox-{secrets.token_hex(6)}").run()
        finally:
            await engine.close()


def _simulated() -> list[str]:
    loop, rng = VirtualLoop(), random.Random(1)  # type: ignore[abstract]
    engine = SimEngine(loop, rng, tell=lambda event: None)
    host = Host("replica", loop)
    client = cast(Engine, SimClient(engine, Network(rng), host))
    said = loop.run_until_complete(host.start(Exchanges(client, SIMULATED, "/tmp/.oncebox").run(), "run"))
    assert loop.unexpected == []
    loop.end([host, *engine.hosts])
    return cast(list[str], said)


@pytest.mark.acceptance
def test_the_simulated_engine_answers_as_the_local_one(tmp_path: Path) -> None:
    assert _simulated() == asyncio.run(_on_the_local_engine(tmp_path))
