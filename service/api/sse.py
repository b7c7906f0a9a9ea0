"""Server-sent events: one event in memory at a time, written when the reader takes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from service.api.caller import HALF_CLOSED_SECONDS, CallerGone, end
from service.api.problems import problem
from service.api.waiting import SIGN_OF_LIFE_SECONDS
from service.errors import Internal, OnceboxError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from service.api.exchange import Call

E = TypeVar("E")
Shown = tuple[str, str | None, Any]
"""An event's name, its id, and its data."""

EVENT_STREAM = "text/event-stream"
HEARTBEAT_SECONDS = SIGN_OF_LIFE_SECONDS
"""Without an event, after which a comment shows that the connection lives."""
OPENING_SECONDS = 2.0
"""To wait for the first event (or the problem in its place) before the stream begins without it."""

log = logging.getLogger("oncebox")


def accepts_events(values: list[str]) -> bool:
    """An ``Accept`` header asks for an event stream."""
    kinds = {item.partition(";")[0].strip().lower() for value in values for item in value.split(",")}
    return EVENT_STREAM in kinds


def format_event(name: str, id: str | None, data: Any) -> bytes:
    """One event. JSON holds no line ends, so the data is one line."""
    lines = [f"event: {name}".encode()]
    if id is not None:
        lines.append(f"id: {id}".encode())
    lines.append(b"data: " + msgspec.json.encode(data))
    return b"\n".join(lines) + b"\n\n"


class EventStream:
    """An answer that writes events as they come, until they end or the reader leaves."""

    def __init__(
        self,
        call: Call,
        events: AsyncIterator[Any],
        show: Callable[[Any], Shown],
        *,
        tell_trouble: bool,
        settle: float = 0.0,
    ) -> None:
        self._call = call
        self._settle = settle
        self._tell_trouble = tell_trouble
        self._events = events
        self._show = show
        self._next = asyncio.ensure_future(anext(events, None))

    @classmethod
    async def open(
        cls,
        call: Call,
        events: AsyncIterator[E],
        show: Callable[[E], Shown],
        *,
        opened: Callable[[E], None] | None = None,
        tell_trouble: bool,
        settle: float = 0.0,
    ) -> EventStream:
        """The stream of ``events``. Raises what ``events`` raises before the first one, if it does so soon.

        ``opened`` gets the first event before the answer's head is sent, where it comes that soon.

        Later trouble is an ``error`` event where ``tell_trouble``; else the stream just ends, and its reader
        comes back with the last id. ``settle``: seconds that the first event gets although the reader left, for
        what the request has begun must not be cut off in the middle.
        """
        stream = cls(call, events, show, tell_trouble=tell_trouble, settle=settle)
        try:
            await asyncio.wait({stream._next}, timeout=OPENING_SECONDS)
            if stream._next.done():
                first = stream._next.result()
                if first is not None and opened is not None:
                    opened(first)
        except BaseException:
            await stream._close()
            raise
        return stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._call.caller.stays = HALF_CLOSED_SECONDS
        try:
            headers = [(b"content-type", EVENT_STREAM.encode()), (b"x-accel-buffering", b"no")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            if self._call.exchange.method != "HEAD":
                await self._write(send)
            await send({"type": "http.response.body", "body": b""})
        finally:
            await self._close()

    async def _write(self, send: Send) -> None:
        while True:
            if not await self._come():
                await send({"type": "http.response.body", "body": b": alive\n\n", "more_body": True})
                continue
            try:
                event = self._next.result()
            except Exception as error:  # noqa: BLE001 - told below, and logged
                await self._fail(send, error)
                return
            if event is None:
                return
            self._settle = 0.0
            body = format_event(*self._show(event))
            await send({"type": "http.response.body", "body": body, "more_body": True})
            self._next = asyncio.ensure_future(anext(self._events, None))

    async def _come(self) -> bool:
        """Whether the next event has come, before it is time for a sign of life. Raises ``CallerGone``."""
        try:
            return await self._call.caller.waits(self._next, HEARTBEAT_SECONDS)
        except CallerGone:
            await asyncio.wait({self._next}, timeout=self._settle)
            raise

    async def _fail(self, send: Send, error: Exception) -> None:
        if not isinstance(error, OnceboxError):
            log.error("a bug: request %s", self._call.exchange.request_id, exc_info=error)
            error = Internal()
        if not self._tell_trouble:
            return
        body = format_event("error", None, problem(error, key_sent=self._call.exchange.key_sent))
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _close(self) -> None:
        await end(self._next)
        if (close := getattr(self._events, "aclose", None)) is not None:
            await close()
