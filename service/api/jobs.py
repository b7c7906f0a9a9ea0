"""Handlers of ``/v1/exec-jobs``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from service.api.exchange import known_sandbox_id
from service.api.parameters import given, pairs_of
from service.api.ranges import RawAnswer, wanted_range
from service.api.replies import empty, output_reply, reply
from service.api.sse import EventStream
from service.api.waiting import reply_in_time
from service.core.jobs.listing import Wanted

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from service.api.exchange import Call
    from service.api.parameters import EventsQuery, JobQuery, JobsQuery, Nothing, OutputQuery
    from service.messages import SubmitJob


async def submit(call: Call, request: SubmitJob) -> Response:
    """Run a command in the background, once for its Idempotency-Key."""
    known_sandbox_id(request.sandbox_id)
    answer = await call.core.jobs.submit(call.tenant, request, call.key)
    call.exchange.about(answer.value.command_id)
    location = f"/v1/exec-jobs/{answer.value.command_id}"
    return reply(answer.value, 202, location=location, replayed=answer.replayed)


async def list_(call: Call, query: JobsQuery) -> Response:
    """List the caller's jobs, newest first."""
    page = await call.core.job_list.page(
        call.tenant,
        sandbox_id=query.sandbox_id or None,
        wanted=Wanted(
            states=frozenset(query.state),
            metadata=pairs_of(query.metadata),
            kind=query.kind or None,
            text=query.q or "",
        ),
        page_size=query.page_size,
        page_token=given(query.page_token),
        share=call.share,
    )
    return reply(page)


async def get(call: Call, query: JobQuery) -> ASGIApp:
    """Get a job with a chunk of its output; with `wait`, as soon as there is something new."""
    if query.wait:
        call.exchange.waits("long_poll")
    answer = functools.partial(
        call.core.jobs.get,
        call.tenant,
        call.command_id,
        cursor=given(query.cursor),
        limit=query.limit,
        wait=0,
        timeout=query.timeout or None,
        encoding=query.encoding,
        full=query.full,
        stream=query.stream or None,
        share=call.share,
    )
    if not query.wait:
        return output_reply(await answer())
    return await reply_in_time(call, answer(wait=query.wait), otherwise=answer)


async def stats(call: Call, _: Nothing) -> Response:
    """Count the caller's jobs and sandboxes by state, and what its jobs did in the last hour, by minutes."""
    return reply(await call.core.statistics.of(call.tenant, share=call.share))


async def cancel(call: Call, _: Nothing) -> Response:
    """Cancel a job. Cancelling a finished one is no error."""
    return reply(await call.core.jobs.cancel(call.tenant, call.command_id), 202)


async def output(call: Call, query: OutputQuery) -> ASGIApp:
    """The raw bytes of a job's output, stdout and stderr merged, or of the one that `stream` names."""
    wanted = wanted_range(call.exchange.headers.get("range", []))
    stream = query.stream or None
    raw = await call.core.jobs.raw(call.tenant, call.command_id, range=wanted, stream=stream, share=call.share)
    return RawAnswer(call.caller, raw, head=call.exchange.method == "HEAD")


async def events(call: Call, query: EventsQuery) -> ASGIApp:
    """Follow a job by server-sent events. `Last-Event-ID` wins over `cursor`: browsers send both."""
    cursor = call.exchange.header("last-event-id") or given(query.cursor)
    if cursor is not None and call.core.jobs.is_end(cursor):
        return empty()
    call.exchange.waits("events")
    events = call.core.jobs.events(
        call.tenant,
        call.command_id,
        cursor=cursor,
        encoding=query.encoding,
        stream=query.stream or None,
        share=call.share,
    )
    return await EventStream.open(call, events, lambda event: (event.kind, event.id, event.data), tell_trouble=False)
