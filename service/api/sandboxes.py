"""Handlers of ``/v1/sandboxes``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from service.api.parameters import given, pairs_of
from service.api.replies import empty, reply

if TYPE_CHECKING:
    from starlette.responses import Response

    from service.api.exchange import Call
    from service.api.parameters import Nothing, SandboxesQuery
    from service.messages import CreateSandbox, RenewSandbox


async def create(call: Call, request: CreateSandbox) -> Response:
    """Create a sandbox, once for its Idempotency-Key."""
    answer = await call.core.sandboxes.create(call.tenant, request, call.key)
    location = f"/v1/sandboxes/{answer.value.sandbox_id}"
    return reply(answer.value, 201, location=location, replayed=answer.replayed)


async def list_(call: Call, query: SandboxesQuery) -> Response:
    """List the caller's sandboxes."""
    page = await call.core.sandbox_list.page(
        call.tenant,
        metadata=pairs_of(query.metadata),
        states=set(query.state),
        text=query.q or "",
        max_age=accepted_age(call.exchange.headers.get("cache-control", [])),
        page_size=query.page_size,
        page_token=given(query.page_token),
        share=call.share,
    )
    return reply(page)


def accepted_age(values: list[str]) -> float:
    """Seconds that an answer may be old, by ``Cache-Control: max-age`` of a request (RFC 9111)."""
    found = re.search(r"(?:^|[,\s])max-age=([0-9]{1,6})(?:$|[,\s])", ",".join(values).lower())
    return float(found[1]) if found else 0.0


async def get(call: Call, _: Nothing) -> Response:
    """Get a sandbox."""
    return reply(await call.core.sandboxes.get(call.tenant, call.sandbox_id))


async def delete(call: Call, _: Nothing) -> Response:
    """Delete a sandbox. Deleting it again is no error."""
    await call.core.sandboxes.delete(call.tenant, call.sandbox_id)
    return empty()


async def renew(call: Call, request: RenewSandbox) -> Response:
    """Let a sandbox live for `timeout` seconds from now."""
    return reply(await call.core.sandboxes.renew(call.tenant, call.sandbox_id, request.timeout))


async def pause(call: Call, _: Nothing) -> Response:
    """Pause a sandbox. Pausing the paused is no error."""
    return reply(await call.core.sandboxes.pause(call.tenant, call.sandbox_id), 202)


async def resume(call: Call, _: Nothing) -> Response:
    """Resume a paused sandbox."""
    return reply(await call.core.sandboxes.resume(call.tenant, call.sandbox_id), 202)
