"""The handler of ``/v1/exec``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.api.exchange import known_sandbox_id
from service.api.replies import reply
from service.api.sse import EventStream, Shown, accepts_events
from service.messages import ExecStart

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from service.api.exchange import Call
    from service.core.model.answers import ExecEvent
    from service.messages import Exec


async def run(call: Call, request: Exec) -> ASGIApp:
    """Run a short command and wait for its result; with `Accept: text/event-stream`, see it as it comes."""
    known_sandbox_id(request.sandbox_id)
    call.exchange.waits("exec")
    if accepts_events(call.exchange.headers.get("accept", [])):
        events = call.core.execs.stream(call.tenant, request, call.key, share=call.share)
        return await EventStream.open(
            call,
            events,
            lambda event: _shown(call, event),
            opened=lambda event: _opened(call, event),
            tell_trouble=True,
            settle=_settle(call),
        )
    call.caller.stays = _settle(call)
    work = call.core.execs.run(call.tenant, request, call.key, share=call.share)
    answer = await call.caller.unless_gone(work)
    call.exchange.about(answer.value.command_id)
    return reply(answer.value, replayed=answer.replayed)


def _opened(call: Call, event: ExecEvent) -> None:
    if event.replayed:
        call.exchange.answer_headers.append((b"idempotent-replayed", b"true"))


def _shown(call: Call, event: ExecEvent) -> Shown:
    if isinstance(event.data, ExecStart):
        call.exchange.about(event.data.command_id)
    return event.kind, None, event.data


def _settle(call: Call) -> float:
    """Seconds within which a claim is settled or left to others; what follows only waits for the result."""
    return call.core.settings.claim_wait + 5
