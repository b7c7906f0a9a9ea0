"""Lists of sandboxes: from the engine, by tenant label, each item checked again here.

The engine pages by offset over newest first, so items move between its pages while they are read. Our token holds
the last item's place in that order, so that a page neither repeats nor skips what was there all along.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Mapping

import msgspec

from service import errors
from service.core import records
from service.core.limits.room import ROW, UNBOUNDED, Share
from service.core.model import labels, tokens, validation
from service.core.model.labels import has_text, matches, pairs
from service.core.problems import refusal
from service.core.telemetry import Telemetry
from service.messages import Sandbox, SandboxPage, SandboxState
from service.ports.engine import Engine, EngineError, SandboxInfo, SandboxListing
from service.ports.store import Store

log = logging.getLogger("oncebox.sandboxes")

ENGINE_PAGE = 200
OLDEST = 5.0
"""Seconds for which a page of the engine's is remembered."""
MOST_LISTED = 16
"""Pages of the engine's that are remembered."""
LOOKED_AT = 1000
"""Items that one list request looks at."""

_TOKEN = re.compile(r"([0-9]{1,17}) ([0-9]{1,6}) ([A-Za-z0-9._-]{1,128})")


class Place(msgspec.Struct, frozen=True):
    """After which item to go on: newest first by (``created`` in microseconds, ``id``), on about which engine page."""

    created: int
    page: int
    id: str


class SandboxList:
    """Lists sandboxes. ``secret``: what their labels are signed with."""

    def __init__(self, store: Store, engine: Engine, telemetry: Telemetry, *, secret: str | None) -> None:
        self._store = store
        self._engine = engine
        self._telemetry = telemetry
        self._secret = secret
        self._listed: dict[tuple[str, ...], tuple[float, SandboxListing]] = {}
        self._asking = asyncio.Lock()

    async def page(
        self,
        tenant: str,
        *,
        metadata: Mapping[str, str],
        states: set[SandboxState],
        page_size: int,
        page_token: str | None,
        text: str = "",
        max_age: float = 0.0,
        share: Share = UNBOUNDED,
    ) -> SandboxPage:
        """A tenant's sandboxes, newest first. A page may be short, or empty with a token.

        ``max_age``: seconds, ``OLDEST`` at the most, that the engine's word may be old; who looks again and again says
        so, and all of them together are one who asks the engine.

        Raises ``RateLimited`` where ``share`` finds no room.
        """
        await share.hold((ENGINE_PAGE + page_size) * ROW)
        metadata = validation.metadata_filter(metadata)
        after = _parse(page_token)
        page = max(1, after.page - 1) if after else 1
        wanted = {**metadata, f"{labels.RESERVED}tenant": tenant}
        found: list[tuple[SandboxInfo, Place]] = []
        held: list[SandboxInfo] = []
        began, first, looked, more = after, page, 0, True
        while more and len(found) <= page_size and (looked < LOOKED_AT or after == began):
            try:
                listing = await self._listing(wanted, page, max_age)
            except EngineError as error:
                raise refusal(error) from error
            looked += ENGINE_PAGE
            more = listing.has_next and bool(listing.items or listing.left_out)
            for _ in range(listing.left_out):
                self._telemetry.unreadable()
            ready, held = _parted([*held, *listing.items], whole=not more)
            for info in ready:
                if after is not None and _order(info) >= (after.created, after.id):
                    continue
                after = Place(*_order(info)[:1], first, info.id)
                if matches(info.metadata, wanted) and records.belongs(info, tenant, self._secret):
                    found.append((info, after))
                if len(found) > page_size:
                    break
            if ready:
                first = page
            page += 1
        shown = [info for info, _ in found[:page_size] if not states or info.state in states]
        views = [view for info in shown if (view := await self._view(tenant, info)) is not None]
        items = [view for view in views if has_text(text, view.sandbox_id, view.image, *pairs(view.metadata))]
        if len(found) > page_size:
            return SandboxPage(items=items, next_page_token=_token(found[page_size - 1][1]))
        if more and after is not None:
            return SandboxPage(items=items, next_page_token=_token(after))
        return SandboxPage(items=items)

    async def _listing(self, wanted: Mapping[str, str], page: int, max_age: float) -> SandboxListing:
        """A page of the engine's; one that was asked for lately where that is new enough."""
        if max_age <= 0:
            return await self._engine.list_sandboxes(wanted, page=page, page_size=ENGINE_PAGE)
        key = (str(page), *(f"{name}={value}" for name, value in sorted(wanted.items())))
        async with self._asking:
            now = asyncio.get_running_loop().time()
            self._listed = {each: known for each, known in self._listed.items() if now - known[0] < OLDEST}
            known = self._listed.get(key)
            if known is None or now - known[0] >= max_age:
                known = now, await self._engine.list_sandboxes(wanted, page=page, page_size=ENGINE_PAGE)
                self._listed[key] = known
                while len(self._listed) > MOST_LISTED:
                    del self._listed[next(iter(self._listed))]
        return known[1]

    async def _view(self, tenant: str, info: SandboxInfo) -> Sandbox | None:
        """None: its labels say that it is this tenant's, and what is remembered of it does not, or can't be read."""
        raw = await self._store.get_sandbox(info.id)
        try:
            known = records.sandbox_record(raw) if raw is not None else None
        except errors.StoreUnavailable:
            log.warning("sandbox %s is left out of a list: its record can't be read", info.id)
            self._telemetry.unreadable()
            return None
        if known is not None and known.tenant != tenant:
            return None
        ready = known is not None and known.ready and info.state is SandboxState.RUNNING
        return records.sandbox_view(info.id, known, info, ready=ready)


def _parted(items: list[SandboxInfo], *, whole: bool) -> tuple[list[SandboxInfo], list[SandboxInfo]]:
    """What is in its final order, newest first; and what is as old as the oldest, of which the next page may have more.

    On Kubernetes everything that was made within a second has the same time.
    """
    ordered = sorted(items, key=_order, reverse=True)
    split = len(ordered)
    while not whole and split and _order(ordered[split - 1])[0] == _order(ordered[-1])[0]:
        split -= 1
    return ordered[:split], ordered[split:]


def _order(info: SandboxInfo) -> tuple[int, str]:
    return int((info.created_at or 0.0) * 1_000_000), info.id


def _token(place: Place) -> str:
    return tokens.pack(f"{place.created} {place.page} {place.id}")


def _parse(text: str | None) -> Place | None:
    if text is None:
        return None
    match = tokens.unpack(text, _TOKEN)
    if match is not None:
        return Place(int(match[1]), int(match[2]), match[3])
    raise errors.InvalidRequest.of("page_token", "is no token that this service made")
