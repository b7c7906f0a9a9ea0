"""What a failed engine call means to a caller. `docs/reference/problems.md` lists them."""

from __future__ import annotations

from service import errors
from service.ports import engine as port

NOT_PERMITTED = "operation not permitted"
"""How execd's text ends where it may not start a command as another user (see ``CommandSpec``)."""


def refusal(error: port.EngineError, *, sandbox_id: str | None = None) -> errors.OnceboxError:
    """The problem for a call that was not executed, or that only asked."""
    match error:
        case port.SandboxMissing():
            return errors.SandboxNotFound(sandbox_id=sandbox_id)
        case port.NoAddress():
            return errors.EngineUnavailable(
                "The sandbox has no address now: it is being made, or made anew.", sandbox_id=sandbox_id, retry_after=5
            )
        case port.SandboxNotReady():
            return errors.SandboxNotRunning(
                f"The sandbox can't do this now: {error.message}", sandbox_id=sandbox_id, retry_after=5
            )
        case port.Busy():
            return errors.QuotaExceeded(
                f"The engine has no room now: {error.message}", retry_after=error.retry_after or 5
            )
        case port.Denied():
            return errors.EngineUnavailable("The engine does not accept this service's key.", retry_after=30)
        case port.Refused():
            return errors.EngineRejected(error.message, sandbox_id=sandbox_id)
        case port.TakenBack():
            return errors.EngineUnavailable(
                f"The engine could not start the sandbox in time, and has removed it: {error.message}", retry_after=5
            )
        case port.NotReached():
            return errors.EngineUnavailable("The engine could not be reached.", sandbox_id=sandbox_id, retry_after=2)
        case _:
            return errors.EngineUnavailable("The engine did not answer.", sandbox_id=sandbox_id, retry_after=2)


def not_started(error: port.EngineError, spec: port.CommandSpec, *, sandbox_id: str) -> errors.OnceboxError:
    """The problem for a command that its daemon could not start."""
    if spec.uid is not None and error.message.endswith(NOT_PERMITTED):
        return errors.InvalidRequest.of("user", "can't be had: this sandbox's daemon may not switch users")
    return refusal(error, sandbox_id=sandbox_id)


def not_executed(error: port.EngineError) -> bool:
    """The engine did certainly not do what it was asked to."""
    return isinstance(error, port.Refused | port.NotReached)
