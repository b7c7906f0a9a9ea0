"""Where a sandbox's daemon is: asked of the lifecycle server, checked, and remembered for a while.

What the lifecycle server says is untrusted (it must not make this service talk to whatever it likes), and it
ages: the port or the address of a sandbox that is gone is given to the next one, and a command sent there
would run in a stranger's sandbox. So a route has an age, and whoever is about to run something asks for a
young one.
"""

import asyncio
import ipaddress
import re
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Literal, Self

from service.engine.outcomes import Side
from service.engine.wire import WireEndpoint
from service.ports.engine import EngineError, NotReached, Refused, Unclear

TTL = 60.0
"""Seconds that a route serves reads."""
FRESH = 5.0
"""Seconds that a route serves calls that do something, and that a "there is no such command" is believed."""
NEW = 1.0
"""Seconds for which the engine's answer about a port that refuses is as good as one of now."""
DECISION_TTL = 300.0
"""Seconds that "directly does not work here" is remembered of a sandbox."""
OWN_PROXY = "/proxy/44772"
"""The path of a daemon's own proxy onto itself: what OpenSandbox's Docker runtime names as the direct endpoint.

That proxy loses the end of an answer now and then (the command has run), and leaves a connection open, both ends in
the daemon, for ten minutes after every request. The daemon itself is at the same host and port.
"""
MAX_ROUTES = 4096
RESOLVE_TIMEOUT = 5.0
"""Seconds for DNS."""

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address
Mode = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class Route:
    """How to reach a sandbox's daemon. ``base`` is a URL without a slash at its end; ``since`` is
    ``time.monotonic``.
    """

    side: Side
    base: str
    headers: Mapping[str, str]
    since: float
    server_name: str | None = None
    """The name for TLS, where ``base`` has the address that was checked in place of the name."""

    def leads_as(self, other: Self | None) -> bool:
        """To the same place, in the same way."""
        return other is not None and replace(other, since=self.since) == self


@dataclass(frozen=True, slots=True)
class Place:
    """A parsed endpoint: ``host`` without brackets, ``path`` empty or beginning with a slash and not ending
    with one.
    """

    host: str
    port: int | None
    path: str
    address: Address | None

    def authority(self) -> str:
        """``host:port`` as in a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


class Endpoints:
    """The routes to the sandboxes of one engine.

    Args:
        lookup: asks the lifecycle server; the second argument is ``use_server_proxy``.
        ping: raises unless the daemon answers on a route, within a second or so.
        proxy_base: the URL of the lifecycle server's own proxy for a sandbox.
        scheme: that of the engine's URL; endpoints come without one.
        clock: seconds, for ages.
    """

    def __init__(
        self,
        *,
        lookup: Callable[[str, bool], Awaitable[WireEndpoint]],
        ping: Callable[[Route], Awaitable[None]],
        proxy_base: Callable[[str], str],
        scheme: str,
        mode: Mode,
        networks: Sequence[Network] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lookup = lookup
        self._ping = ping
        self._proxy_base = proxy_base
        self._scheme = scheme
        self._mode = mode
        self._networks = tuple(networks)
        self._clock = clock
        self._routes: OrderedDict[str, Route] = OrderedDict()
        self._under_way: dict[str, asyncio.Task[Route]] = {}
        self._proxied: OrderedDict[str, float] = OrderedDict()

    async def route(self, sandbox_id: str, max_age: float = TTL) -> Route:
        """The route, at most ``max_age`` seconds old. Callers at the same time share one lookup.

        Nothing was sent to the daemon yet, so every failure here is "not executed": ``NotReached`` or
        ``Refused``.
        """
        known = self._routes.get(sandbox_id)
        if known is not None and self._clock() - known.since <= max_age:
            self._routes.move_to_end(sandbox_id)
            return known
        task = self._under_way.get(sandbox_id)
        if task is None:
            task = asyncio.ensure_future(self._find(sandbox_id, known))
            self._under_way[sandbox_id] = task
            task.add_done_callback(lambda done: self._found(sandbox_id, done))
        try:
            return await asyncio.shield(task)
        except Unclear as error:
            raise NotReached(f"no endpoint: {error.message}", status=error.status) from error
        except asyncio.CancelledError:
            # Closing cancels the lookup, which must not look as if its caller were cancelled.
            if task.cancelled() and not _being_cancelled():
                raise NotReached("the engine client is closed") from None
            raise

    def fresh(self, route: Route) -> bool:
        """A "there is none" is believed of it."""
        return self._clock() - route.since <= FRESH

    def new(self, route: Route) -> bool:
        """The engine was asked for it this moment: asking again would tell nothing else."""
        return self._clock() - route.since <= NEW

    def forget(self, sandbox_id: str, route: Route | None = None) -> None:
        """Drop what is remembered of a sandbox; with ``route`` only if that is still the one remembered."""
        if route is None or self._routes.get(sandbox_id) is route:
            self._routes.pop(sandbox_id, None)

    async def close(self) -> None:
        """Stop lookups that are under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _found(self, sandbox_id: str, task: asyncio.Task[Route]) -> None:
        self._under_way.pop(sandbox_id, None)
        if task.cancelled() or task.exception() is not None:
            self._routes.pop(sandbox_id, None)
            return
        self._routes[sandbox_id] = task.result()
        self._routes.move_to_end(sandbox_id)
        while len(self._routes) > MAX_ROUTES:
            self._routes.popitem(last=False)

    async def _find(self, sandbox_id: str, known: Route | None) -> Route:
        if self._mode == "always":
            return await self._through_proxy(sandbox_id)
        if self._mode == "never":
            return await self._direct(sandbox_id, known)
        decided = self._proxied.get(sandbox_id)
        if decided is not None and self._clock() - decided <= DECISION_TTL:
            return await self._through_proxy(sandbox_id)
        self._proxied.pop(sandbox_id, None)
        return await self._best(sandbox_id, known)

    async def _best(self, sandbox_id: str, known: Route | None) -> Route:
        """Direct where that works, else the proxy where that works. A daemon that is not up yet decides
        nothing.
        """
        try:
            direct = await self._direct(sandbox_id, known)
            if not direct.leads_as(known):
                await self._ping(direct)
        except Refused:
            raise
        except EngineError as why:
            proxied = await self._through_proxy(sandbox_id)
            try:
                await self._ping(proxied)
            except Refused:
                raise
            except EngineError as error:
                neither = NotReached(f"the daemon answers neither directly ({why.message}) nor by the proxy")
                neither.refused = isinstance(error, NotReached) and error.refused
                raise neither from error
            self._proxied[sandbox_id] = self._clock()
            while len(self._proxied) > MAX_ROUTES:
                self._proxied.popitem(last=False)
            return proxied
        return direct

    async def _through_proxy(self, sandbox_id: str) -> Route:
        """The proxy of the engine that was configured, whatever address the answer names; its headers are
        sent along.
        """
        since = self._clock()
        found = await self._lookup(sandbox_id, True)
        return Route(Side.PROXY, self._proxy_base(sandbox_id), safe_headers(found.headers), since)

    async def _direct(self, sandbox_id: str, known: Route | None) -> Route:
        """Where the engine says that the daemon is; past the daemon's own proxy where the daemon answers there."""
        since = self._clock()
        found = await self._lookup(sandbox_id, False)
        place = parse_endpoint(found.endpoint)
        headers = safe_headers(found.headers)
        named = await self._checked(place, headers, since)
        if place.path != OWN_PROXY:
            return named
        short = replace(named, base=named.base.removesuffix(OWN_PROXY))
        if not short.leads_as(known):
            try:
                await self._ping(short)
            except EngineError:
                return named
        return short

    async def _checked(self, place: Place, headers: dict[str, str], since: float) -> Route:
        if not self._networks:
            return Route(Side.DIRECT, f"{self._scheme}://{place.authority()}{place.path}", headers, since)
        address = await self._allowed(place)
        base = f"{self._scheme}://{replace(place, host=str(address)).authority()}{place.path}"
        if place.address is not None:
            return Route(Side.DIRECT, base, headers, since)
        # The connection goes to the address that was checked: a name may mean another one a moment later.
        return Route(Side.DIRECT, base, {**headers, "Host": place.authority()}, since, place.host)

    async def _allowed(self, place: Place) -> Address:
        candidates = [place.address] if place.address is not None else await _resolve(place.host)
        for address in candidates:
            if _inside(address, self._networks):
                return address
        raise NotReached("the endpoint that the engine named lies outside the allowed networks")


# -- the text of an endpoint


_ENDPOINT = re.compile(
    r"(?:https?://)?(?:\[(?P<six>[0-9A-Fa-f:.]{2,45})\]|(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,252})))"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>(?:/[A-Za-z0-9._~%!$&'()*+,;=:-]*)*)"
)
_NUMBER = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")


def parse_endpoint(text: str) -> Place:
    """``host[:port][/path]``; raises ``NotReached`` for anything else.

    No user, query or fragment, no ``..``, nothing that is not ASCII, and no host that is an address in
    disguise (``127.1``, ``0x7f000001``): what is checked must be what is connected to. A scheme is skipped:
    the engine's URL has it.
    """
    found = _ENDPOINT.fullmatch(text) if len(text) <= 2048 else None
    if found is None:
        raise NotReached("the engine named an endpoint that is none")
    path = found["path"].rstrip("/")
    port = int(found["port"]) if found["port"] else None
    lowered = path.lower().replace("%2e", ".")
    if port == 0 or (port or 0) > 65535 or any(each in (".", "..") for each in lowered.split("/")):
        raise NotReached("the engine named an endpoint that is none")
    host = found["six"] or found["name"]
    return Place(host, port, path, _address(host, six=found["six"] is not None))


def _address(host: str, *, six: bool) -> Address | None:
    try:
        return IPv6Address(host) if six else IPv4Address(host)
    except ValueError:
        if six or _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
            raise NotReached("the engine named an endpoint that is none") from None
        return None


def _inside(address: Address, networks: Sequence[Network]) -> bool:
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return any(address in network for network in networks if network.version == address.version)


def _being_cancelled() -> bool:
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0


async def _resolve(host: str) -> list[Address]:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(RESOLVE_TIMEOUT):
            found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise NotReached("the endpoint's name can't be resolved") from error
    return [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in found]


_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]{0,4094}[\x21-\x7e])?|")
_OURS = frozenset(
    [
        "host",
        "connection",
        "content-length",
        "content-type",
        "content-encoding",
        "transfer-encoding",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "range",
        "accept-encoding",
        "proxy-authorization",
        "open-sandbox-api-key",
    ]
)
MAX_HEADERS = 32


def safe_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """The headers that belong to an endpoint (access tokens, routing); what frames a request is ours."""
    found = {name: value for name, value in (headers or {}).items() if name.lower() not in _OURS}
    if len(found) > MAX_HEADERS:
        raise NotReached("the engine named an endpoint with too many headers")
    for name, value in found.items():
        if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise NotReached("the engine named an endpoint with a header that is none")
    return found
