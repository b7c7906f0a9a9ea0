"""One line of the audit trail for each request that changes state, or tried to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from service import audit
from service.api.caller import CallerGone
from service.api.exchange import Exchange
from service.core.model.identity import parse_command_id
from service.errors import OnceboxError, OutcomeUnknown

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

ACTIONS: Mapping[tuple[str, str], str] = {
    ("POST", "/v1/sandboxes"): "sandbox.create",
    ("DELETE", "/v1/sandboxes/{sandbox_id}"): "sandbox.delete",
    ("POST", "/v1/sandboxes/{sandbox_id}/renew"): "sandbox.renew",
    ("POST", "/v1/sandboxes/{sandbox_id}/pause"): "sandbox.pause",
    ("POST", "/v1/sandboxes/{sandbox_id}/resume"): "sandbox.resume",
    ("POST", "/v1/exec"): "exec.run",
    ("POST", "/v1/exec-jobs"): "job.submit",
    ("DELETE", "/v1/exec-jobs/{command_id}"): "job.cancel",
    ("PUT", "/v1/sandboxes/{sandbox_id}/files"): "file.write",
    ("DELETE", "/v1/sandboxes/{sandbox_id}/files"): "file.remove",
    ("PUT", "/v1/sandboxes/{sandbox_id}/archive"): "archive.write",
    ("POST", "/v1/sandboxes/{sandbox_id}/directories"): "directory.create",
}
"""By method and route: everything that changes state."""
_METHODS = frozenset(method for method, _ in ACTIONS)
_ID_SHOWN = 256
"""Characters of an id; a longer one is no id."""


class Audit:
    """Writes the line of a request when it is over. Requests of nobody change nothing, and have none."""

    def __init__(self, app: ASGIApp, *, route_of: Callable[[str], str | None]) -> None:
        self.app = app
        self.route_of = route_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange.of(scope)
        action = None
        if exchange.method in _METHODS:
            action = ACTIONS.get((exchange.method, self.route_of(scope["path"]) or ""))
        if action is None:
            await self.app(scope, receive, send)
            return
        seen: dict[str, str] = {}

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = {name.lower(): value.decode("latin-1") for name, value in message.get("headers", ())}
                seen["outcome"] = "replayed" if b"idempotent-replayed" in headers else "done"
                seen["location"] = headers.get(b"location", "")
            await send(message)

        error: BaseException | None = None
        try:
            await self.app(scope, receive, watched)
        except BaseException as raised:
            error = raised
            raise
        finally:
            if exchange.tenant is not None:
                _write(action, scope, exchange, seen, error)


def _write(action: str, scope: Scope, exchange: Exchange, seen: Mapping[str, str], error: BaseException | None) -> None:
    place = seen.get("location", "").rpartition("/")
    ids: dict[str, str] = dict(scope.get("path_params", {}))
    if place[0].endswith("/sandboxes"):
        ids["sandbox_id"] = place[2]
    if (command_id := exchange.command_id or getattr(error, "command_id", None)) is not None:
        ids["command_id"] = command_id
    if (parsed := parse_command_id(ids.get("command_id", ""))) is not None:
        ids["sandbox_id"] = parsed[0]
    if (sandbox_id := getattr(error, "sandbox_id", None)) is not None:
        ids.setdefault("sandbox_id", sandbox_id)
    audit.record(
        action,
        seen["outcome"] if error is None and "outcome" in seen else _outcome(error),
        tenant=exchange.tenant,
        request_id=exchange.request_id,
        key_digest=audit.key_digest(exchange.key) if exchange.key is not None else None,
        code=error.code if isinstance(error, OnceboxError) else None,
        **{name: value[:_ID_SHOWN] for name, value in ids.items()},
        **exchange.audited,
    )


def _outcome(error: BaseException | None) -> str:
    """``refused``: nothing was executed. ``unknown``: it may have been. ``left``: nobody waited for the answer."""
    match error:
        case OutcomeUnknown():
            return "unknown"
        case OnceboxError():
            return "refused"
        case CallerGone():
            return "left"
    return "failed"
