"""An exec is closed by what its stream told only where its fence says the same; all else is left to a look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from service.core import records
from service.core.fence.protocol import Fence
from service.core.jobs.decisions import Change
from service.core.jobs.foreground import Foreground, Told
from service.core.model import identity
from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.core.telemetry import Telemetry
from service.messages import JobState
from service.ports.engine import CommandEvent, FileRange, Unclear
from service.ports.store import Record

BODY = JobBody(
    tenant="t", sandbox_id="s", fingerprint="f", command="x", timeout=5, submitted_at=0.0, kind="exec",
    boot="mark", engine_id="abc",
)  # fmt: skip
OURS = Fence(kind="run", fingerprint="f", log="/tmp/abc.stdout", exit_code=3)
ENDED = CommandEvent(type="exit", exit_code=3, text="exit status 3", at=101.5)


def accepted(body: JobBody = BODY, state: ClaimState = ClaimState.ACCEPTED) -> Record:
    return Record(
        id=identity.command_id("s", identity.job_ref("00")), state=state, epoch=1, attempt=1, revision=3, lease_until=0,
        token="t", owner="me", cancel=False, body=records.encode(body), now=1000,
    )  # fmt: skip


class World:
    """What the exec's parts ask for; keeps what was written. ``other``: what stands where the write lost its race."""

    def __init__(self, fence: Fence | Exception | None, other: Record | None = None) -> None:
        self.written: list[tuple[ClaimState, JobBody, Any]] = []
        self._fence, self._other = fence, other
        me: Any = self
        pace: Any = SimpleNamespace(charge=lambda reads: None)
        self.foreground = Foreground(me, me, me, me, pace, Telemetry(), keep=100)

    async def now(self) -> int:
        return 102_000

    async def read(self, *_: Any) -> Fence | None:
        if isinstance(self._fence, Exception):
            raise self._fence
        return self._fence

    def output_path(self, command: str, stream: str) -> str:
        return f"/tmp/{command}.{stream}"

    async def read_file(self, sandbox_id: str, path: str, offset: int, length: int) -> FileRange:
        data = path.rpartition(".")[2].encode()
        return FileRange(offset, data, len(data))

    async def apply(self, record: Record, change: Change) -> Record:
        self.written.append((change.state, change.body, change.streams))
        return self._other or msgspec.structs.replace(record, state=change.state, body=records.encode(change.body))


def told(*events: CommandEvent) -> Told:
    found = Told()
    for event in events:
        found.note(event)
    return found


BEGUN = CommandEvent(type="init", text="abc", at=100.0)


async def test_an_exec_whose_fence_agrees_is_closed_as_its_stream_told() -> None:
    world = World(OURS)
    closed = await world.foreground._closed(accepted(), told(BEGUN, ENDED))
    assert closed is not None
    [(state, body, streams)] = world.written
    assert state is ClaimState.CLOSED
    assert (body.state, body.exit_code, body.started_at, body.finished_at) == (JobState.EXITED, 3, 100.0, 101.5)
    assert (body.log, body.output_complete, body.truncated, body.printed) == ("/tmp/abc.stdout", True, False, 12)
    assert streams == closed.streams == {"stdout": b"stdout", "stderr": b"stderr"}


def changed(event: Any, **changes: Any) -> Any:
    return msgspec.structs.replace(event, **changes)


LEFT: dict[str, tuple[Fence | Exception | None, list[CommandEvent], Record]] = {
    "no fence": (None, [BEGUN, ENDED], accepted()),
    "the fence has no exit code": (changed(OURS, exit_code=None), [BEGUN, ENDED], accepted()),
    "the fence has another exit code": (changed(OURS, exit_code=0), [BEGUN, ENDED], accepted()),
    "the fence is another copy's": (changed(OURS, log="/tmp/def.stdout"), [BEGUN, ENDED], accepted()),
    "the fence is damaged": (changed(OURS, kind="damaged"), [BEGUN, ENDED], accepted()),
    "the fence is a void": (Fence(kind="void", boot="mark"), [BEGUN, ENDED], accepted()),
    "the fence can't be read": (Unclear("x"), [BEGUN, ENDED], accepted()),
    "killed by a signal": (OURS, [BEGUN, changed(ENDED, exit_code=-1, text="signal: killed")], accepted()),
    "the exit code of a SIGTERM": (changed(OURS, exit_code=143), [BEGUN, changed(ENDED, exit_code=143)], accepted()),
    "as long as its timeout": (OURS, [BEGUN, changed(ENDED, at=104.95)], accepted()),
    "no times": (OURS, [changed(BEGUN, at=None), changed(ENDED, at=None)], accepted()),
    "no end": (OURS, [BEGUN], accepted()),
    "not fenced": (OURS, [BEGUN, ENDED], accepted(msgspec.structs.replace(BODY, fenced=False))),
    "looked at meanwhile": (OURS, [BEGUN, ENDED], accepted(state=ClaimState.RUNNING)),
}


@pytest.mark.parametrize("case", LEFT)
async def test_an_exec_is_left_to_a_look_where_anything_differs(case: str) -> None:
    fence, events, record = LEFT[case]
    world = World(fence)
    assert await world.foreground._closed(record, told(*events)) is None
    assert not world.written


async def test_an_exec_that_was_cancelled_meanwhile_is_left_to_a_look() -> None:
    record = accepted()
    world = World(OURS, msgspec.structs.replace(record, revision=4, cancel=True))
    assert await world.foreground._closed(record, told(BEGUN, ENDED)) is None
