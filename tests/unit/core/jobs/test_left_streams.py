"""A stream that is left is closed there and then, with all the generators under it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from service.core.jobs.foreground import Foreground, Listener
from service.core.model import identity
from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.core.telemetry import Telemetry
from service.engine.execd import Execd
from service.ports.engine import CommandEvent, CommandSpec
from service.ports.store import Record

MINE = Record(
    id=identity.command_id("sandbox", identity.job_ref(identity.random_token())),
    state=ClaimState.DISPATCHED,
    epoch=1,
    attempt=1,
    revision=2,
    lease_until=1,
    token="t",
    owner="me",
    cancel=False,
    body=b"{}",
    now=0,
)


class Connection:
    """A reply that never ends."""

    def __init__(self) -> None:
        self.open = False

    @asynccontextmanager
    async def __call__(self, *_: Any, **__: Any) -> AsyncIterator[Connection]:
        self.open = True
        try:
            yield self
        finally:
            self.open = False

    async def check(self) -> None:
        pass

    async def pieces(self) -> AsyncIterator[bytes]:
        while True:
            yield b'{"type":"init","text":"abc"}\n\n'
            yield b'{"type":"stdout","text":"x"}\n\n'


async def test_a_command_s_stream_that_is_left_gives_its_connection_back(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, execd = Connection(), Execd.__new__(Execd)
    monkeypatch.setattr(execd, "open", connection, raising=False)
    async with aclosing(execd.stream("sandbox", CommandSpec(command="x", timeout=1), silence=1)) as events:
        async for _ in events:
            assert connection.open
            break
    assert not connection.open


async def test_an_exec_whose_record_can_t_be_written_leaves_no_stream_behind() -> None:
    running = [False]

    async def stream(*_: Any, **__: Any) -> AsyncGenerator[CommandEvent, None]:
        running[0] = True
        try:
            yield CommandEvent(type="init", text="abc")
        finally:
            running[0] = False

    async def accepted(*_: Any) -> Record:
        assert running[0]
        raise RuntimeError("no record")

    engine: Any = SimpleNamespace(stream=stream)
    ledger: Any = SimpleNamespace(accept=accepted)
    other: Any = None
    foreground = Foreground(other, engine, other, ledger, other, Telemetry(), keep=1)
    body = JobBody(tenant="t", sandbox_id="s", fingerprint="f", command="x", timeout=1, submitted_at=0.0)
    with pytest.raises(RuntimeError) as kept:  # its traceback keeps the generator alive
        await foreground.run(MINE, body, CommandSpec(command="x", timeout=1), Listener.nobody())
    assert not running[0], kept
