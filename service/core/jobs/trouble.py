"""A sandbox whose daemon does not answer: what the engine says of it decides."""

from __future__ import annotations

import msgspec

from service.core import records
from service.core.jobs.decisions import Change, gone
from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.messages import JobState, Reason, SandboxState
from service.ports.engine import Engine, EngineError, SandboxMissing
from service.ports.store import Record

DEADLINE_GRACE = 60.0
"""Seconds past a job's deadline after which what can't be found out any more is settled as lost."""


def overdue(record: Record, body: JobBody) -> bool:
    """The deadline and a grace have passed."""
    return record.now / 1000 > records.deadline(body) + DEADLINE_GRACE


async def of_run(engine: Engine, record: Record, body: JobBody) -> Change:
    """The last known state of a run, until its deadline and a grace have passed.

    That of a paused sandbox can't: the grace begins when it runs again.
    """
    state = await _state(engine, body.sandbox_id)
    if state is not None and state.over:
        return gone(record)
    paused = state in (SandboxState.PAUSING, SandboxState.PAUSED, SandboxState.RESUMING)
    now = record.now / 1000
    since = now if paused else body.troubled_since or now
    body = msgspec.structs.replace(body, looks=body.looks + 1, logs_ok=False, troubled_since=since)
    if overdue(record, body) and now - since > DEADLINE_GRACE:
        lost = msgspec.structs.replace(body, state=JobState.LOST, reason=Reason.ENGINE_UNREACHABLE)
        return Change(state=ClaimState.CLOSED, body=lost)
    return Change(state=record.state, body=body, notify=False)


async def of_submission(engine: Engine, record: Record, body: JobBody) -> Change:
    """Nothing can be proved of a submission now: the sandbox is gone, or it is tried again later."""
    state = await _state(engine, body.sandbox_id)
    return gone(record) if state is not None and state.over else later(record, body)


def later(record: Record, body: JobBody) -> Change:
    """It is tried again."""
    state = ClaimState.UNKNOWN if body.doubtful else record.state
    return Change(
        state=state, body=msgspec.structs.replace(body, looks=body.looks + 1), notify=state is not record.state
    )


async def _state(engine: Engine, sandbox_id: str) -> SandboxState | None:
    """As the engine has it; None: it does not say now."""
    try:
        return (await engine.get_sandbox(sandbox_id)).state
    except SandboxMissing:
        return SandboxState.TERMINATED
    except EngineError:
        return None
