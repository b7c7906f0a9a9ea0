"""A sandbox whose daemon does not answer: what the engine says of it decides."""

from __future__ import annotations

import msgspec

from service.core import records
from service.core.jobs.decisions import Change, gone
from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.core.sandboxes.liveness import nobody_there
from service.messages import JobState, Reason, SandboxState
from service.ports.engine import Engine, EngineError, SandboxInfo, SandboxMissing
from service.ports.store import Record

DEADLINE_GRACE = 60.0
"""Seconds past a job's deadline after which what can't be found out any more is settled as lost."""

REFUSED_LIMIT = 300.0
"""Seconds of refusals on end, while the engine calls the sandbox pending or failed, after which nobody comes back.

On Kubernetes a container comes back within 2 to 14 s, or a pod is made anew; where nobody does either, nothing says so.
What is settled can't be taken back.
"""


def overdue(record: Record, body: JobBody) -> bool:
    """The deadline and a grace have passed."""
    return record.now / 1000 > records.deadline(body) + DEADLINE_GRACE


async def of_run(engine: Engine, record: Record, body: JobBody, error: EngineError) -> Change:
    """The last known state of a run, until its deadline and a grace have passed; ``error``: what a call for it came to.

    That of a paused sandbox can't: the grace begins when it runs again.
    """
    info = await _info(engine, body.sandbox_id)
    if _gone(info):
        return gone(record)
    body = _refusals(record, body, info, error)
    if _nobody_comes_back(record, body):
        return _unreachable(body)
    state = info.state if isinstance(info, SandboxInfo) else None
    paused = state in (SandboxState.PAUSING, SandboxState.PAUSED, SandboxState.RESUMING)
    now = record.now / 1000
    since = now if paused else body.troubled_since or now
    body = msgspec.structs.replace(body, quiet_polls=body.quiet_polls + 1, logs_ok=False, troubled_since=since)
    if overdue(record, body) and now - since > DEADLINE_GRACE:
        return _unreachable(body)
    return Change(state=record.state, body=body, notify=False)


async def of_submission(engine: Engine, record: Record, body: JobBody, error: EngineError | None = None) -> Change:
    """Nothing can be proved of a submission now: the sandbox is gone, or it is tried again later."""
    info = await _info(engine, body.sandbox_id)
    if _gone(info):
        return gone(record)
    body = _refusals(record, body, info, error)
    return _unreachable(body) if _nobody_comes_back(record, body) else later(record, body)


def _unreachable(body: JobBody) -> Change:
    lost = msgspec.structs.replace(body, state=JobState.LOST, reason=Reason.ENGINE_UNREACHABLE, doubtful=False)
    return Change(state=ClaimState.CLOSED, body=lost)


def _refusals(
    record: Record, body: JobBody, info: SandboxInfo | SandboxMissing | None, error: EngineError | None
) -> JobBody:
    """Notes since when nobody is there. An engine that does not say how the sandbox is proves nothing either way."""
    if not isinstance(info, SandboxInfo) or error is None:
        return body
    waiting = info.state in (SandboxState.PENDING, SandboxState.FAILED)
    since = (body.refused_since or record.now / 1000) if waiting and nobody_there(error) else None
    return msgspec.structs.replace(body, refused_since=since)


def _nobody_comes_back(record: Record, body: JobBody) -> bool:
    return body.refused_since is not None and record.now / 1000 - body.refused_since > REFUSED_LIMIT


def later(record: Record, body: JobBody) -> Change:
    """It is tried again."""
    state = ClaimState.UNKNOWN if body.doubtful else record.state
    return Change(
        state=state,
        body=msgspec.structs.replace(body, quiet_polls=body.quiet_polls + 1),
        notify=state is not record.state,
    )


async def _info(engine: Engine, sandbox_id: str) -> SandboxInfo | SandboxMissing | None:
    """As the engine has it; None: it does not say now."""
    try:
        return await engine.get_sandbox(sandbox_id)
    except SandboxMissing as missing:
        return missing
    except EngineError:
        return None


def _gone(info: SandboxInfo | SandboxMissing | None) -> bool:
    return isinstance(info, SandboxMissing) or (info is not None and info.over)
