"""What is known of the work under way, for whoever tells of it: log lines, traces.

Context variables: a task that is started for a request knows what the request knew, and a background task knows
what it has found out itself. Nothing here is ever a secret or a command.
"""

from __future__ import annotations

from contextvars import ContextVar

request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
tenant: ContextVar[str | None] = ContextVar("tenant", default=None)
command_id: ContextVar[str | None] = ContextVar("command_id", default=None)
trace_id: ContextVar[str | None] = ContextVar("trace_id", default=None)
"""32 hex digits, where the request is traced."""

_KNOWN = (request_id, tenant, command_id, trace_id)


def known() -> dict[str, str]:
    """What is known here, by name."""
    return {variable.name: value for variable in _KNOWN if (value := variable.get()) is not None}


def begin(request: str) -> None:
    """A request begins, perhaps in a task that had another one before."""
    request_id.set(request)
    tenant.set(None)
    command_id.set(None)
