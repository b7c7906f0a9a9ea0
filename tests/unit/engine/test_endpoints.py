"""Where a sandbox's daemon is: what the engine says of it is checked, remembered and forgotten."""

import asyncio
import ipaddress
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from yarl import URL

from service.engine import endpoints as module
from service.engine.endpoints import Endpoints, Mode, Route, parse_endpoint, safe_headers
from service.engine.outcomes import Side
from service.engine.wire import WireEndpoint
from service.ports.engine import EngineError, NotReached, SandboxMissing, Unclear

GOOD = [
    ("127.0.0.1:40848/proxy/44772", "127.0.0.1:40848", "/proxy/44772"),
    ("10.0.0.7:44772", "10.0.0.7:44772", ""),
    ("sandbox-1.engine.svc:44772/", "sandbox-1.engine.svc:44772", ""),
    ("[2001:db8::1]:44772/a", "[2001:db8::1]:44772", "/a"),
    ("gateway", "gateway", ""),
    ("http://10.0.0.7:44772", "10.0.0.7:44772", ""),
    ("gateway:80/a%20b/c", "gateway:80", "/a%20b/c"),
]
BAD = [
    "",
    " 10.0.0.7",
    "user@10.0.0.7:80",
    "user:pw@host/",
    "host:80#x",
    "host?x=1",
    "host:80/a?b",
    "host\\@evil",
    "host:80\r\nX: y",
    "ftp://host",
    "//host",
    "http:///x",
    "host:0",
    "host:70000",
    "host:abc",
    "host:80:81",
    "[::1",
    "[::g]:80",
    "[1.2.3.4]:80",
    "127.1",
    "127.0.0.1.:80",
    "0x7f000001:80",
    "0x7f.1",
    "2130706433",
    "1.2.3.0x",
    "host/../admin",
    "host/%2e%2E/admin",
    "host/./x",
    "h\u00f6st",
    "host\u3002example",
    "x" * 3000,
    "-host",
]


@pytest.mark.parametrize(("text", "authority", "path"), GOOD)
def test_an_endpoint_has_a_host_and_may_have_a_port_and_a_path(text: str, authority: str, path: str) -> None:
    place = parse_endpoint(text)
    assert (place.authority(), place.path) == (authority, path)


@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_no_endpoint(text: str) -> None:
    with pytest.raises(NotReached):
        parse_endpoint(text)


@given(text=st.text(max_size=60) | st.text("0123456789abcdefx.:/[]@#?%-_\\ ", max_size=40))
@settings(max_examples=500)
def test_what_is_checked_is_what_is_connected_to(text: str) -> None:
    try:
        place = parse_endpoint(text)
    except EngineError:
        return
    url = URL(f"http://{place.authority()}{place.path}/command", encoded=True)
    assert url.raw_host is not None
    assert url.raw_host.lower() == place.host.lower()
    assert url.user is None
    assert url.fragment == ""
    assert url.query_string == ""
    assert url.raw_path == f"{place.path}/command"


def test_an_endpoints_headers_go_along_but_ours_stay_ours() -> None:
    headers = {"X-EXECD-ACCESS-TOKEN": "t", "Host": "evil", "Content-Length": "0", "open-sandbox-api-key": "x"}
    assert safe_headers(headers) == {"X-EXECD-ACCESS-TOKEN": "t"}
    assert safe_headers(None) == {}


@pytest.mark.parametrize(
    "headers", [{"a b": "x"}, {"a": "x\r\ny: z"}, {"a": "\u00e9"}, {"": "x"}, {str(n): "x" for n in range(33)}]
)
def test_headers_that_are_none_are_refused(headers: Mapping[str, str]) -> None:
    with pytest.raises(NotReached):
        safe_headers(headers)


class Engine:
    """A lifecycle server and a network, as the routes see them."""

    def __init__(self, endpoint: str = "10.0.0.7:44772", headers: dict[str, str] | None = None) -> None:
        self.endpoint = endpoint
        self.headers = headers
        self.direct_works = True
        self.proxy_works = True
        self.dead: set[str] = set()
        self.error: EngineError | None = None
        self.lookups: list[bool] = []
        self.pings: list[Side] = []
        self.now = 1000.0
        self.gate = asyncio.Event()
        self.gate.set()

    async def lookup(self, _: str, proxied: bool) -> WireEndpoint:
        self.lookups.append(proxied)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return WireEndpoint(endpoint="elsewhere/x" if proxied else self.endpoint, headers=self.headers)

    async def ping(self, route: Route) -> None:
        self.pings.append(route.side)
        if route.base in self.dead or not (self.direct_works if route.side is Side.DIRECT else self.proxy_works):
            raise Unclear("no pong")

    def routes(self, mode: Mode = "auto", networks: list[str] | None = None) -> Endpoints:
        return Endpoints(
            lookup=self.lookup,
            ping=self.ping,
            proxy_base=lambda sandbox: f"https://engine/v1/sandboxes/{sandbox}/proxy/44772",
            scheme="https",
            mode=mode,
            networks=[ipaddress.ip_network(each) for each in networks or []],
            clock=lambda: self.now,
        )


async def test_auto_goes_directly_where_that_works() -> None:
    engine = Engine(headers={"Token": "t"})
    route = await engine.routes().route("a")
    assert (route.side, route.base, route.headers) == (Side.DIRECT, "https://10.0.0.7:44772", {"Token": "t"})
    assert engine.pings == [Side.DIRECT]


async def test_auto_takes_the_engines_own_proxy_where_it_does_not() -> None:
    engine = Engine(headers={"Token": "t"})
    engine.direct_works = False
    route = await engine.routes().route("a")
    assert (route.side, route.headers) == (Side.PROXY, {"Token": "t"})
    assert route.base == "https://engine/v1/sandboxes/a/proxy/44772"
    assert engine.lookups == [False, True]


async def test_a_daemon_that_is_not_up_yet_decides_nothing() -> None:
    engine = Engine()
    routes = engine.routes()
    engine.direct_works = engine.proxy_works = False
    with pytest.raises(NotReached):
        await routes.route("a")
    engine.direct_works = engine.proxy_works = True
    assert (await routes.route("a")).side is Side.DIRECT


@pytest.mark.parametrize(("mode", "side"), [("always", Side.PROXY), ("never", Side.DIRECT)])
async def test_a_fixed_way_is_not_probed(mode: Mode, side: Side) -> None:
    engine = Engine()
    assert (await engine.routes(mode).route("a")).side is side
    assert engine.lookups == [mode == "always"]
    assert engine.pings == []


@pytest.mark.parametrize("mode", ["auto", "never"])
@pytest.mark.parametrize("networks", [[], ["10.0.0.0/8"]])
async def test_a_daemons_own_proxy_onto_itself_is_passed_by(mode: Mode, networks: list[str]) -> None:
    engine = Engine("10.0.0.7:40848/proxy/44772", headers={"Token": "t"})
    routes = engine.routes(mode, networks)
    route = await routes.route("a")
    assert (route.side, route.base, route.headers) == (Side.DIRECT, "https://10.0.0.7:40848", {"Token": "t"})
    asked = len(engine.pings)
    engine.now += 30
    assert (await routes.route("a", max_age=5)).base == route.base
    assert len(engine.pings) == asked, "the same endpoint was tried already"


@pytest.mark.parametrize("mode", ["auto", "never"])
async def test_it_is_used_where_the_daemon_does_not_answer_beside_it(mode: Mode) -> None:
    engine = Engine("10.0.0.7:40848/proxy/44772")
    engine.dead = {"https://10.0.0.7:40848"}
    assert (await engine.routes(mode).route("a")).base == "https://10.0.0.7:40848/proxy/44772"


@pytest.mark.parametrize("path", ["/a/proxy/44772", "/proxy/8080", "/proxy/44772/a"])
async def test_any_other_path_is_the_engines_to_choose(path: str) -> None:
    engine = Engine(f"10.0.0.7:40848{path}")
    assert (await engine.routes().route("a")).base == f"https://10.0.0.7:40848{path}"


async def test_a_route_is_remembered_and_a_young_one_can_be_asked_for() -> None:
    engine = Engine()
    routes = engine.routes()
    first = await routes.route("a")
    engine.now += 30
    assert await routes.route("a") is first
    second = await routes.route("a", max_age=5)
    assert second is not first
    assert engine.pings == [Side.DIRECT], "the same endpoint was tried already"
    engine.now += 61
    await routes.route("a")
    assert len(engine.lookups) == 3


async def test_an_endpoint_that_moved_is_tried_again() -> None:
    engine = Engine()
    routes = engine.routes()
    await routes.route("a")
    engine.now += 10
    engine.endpoint = "10.0.0.8:44772"
    assert (await routes.route("a", max_age=5)).base == "https://10.0.0.8:44772"
    assert engine.pings == [Side.DIRECT, Side.DIRECT]


async def test_that_the_direct_way_does_not_work_is_remembered_for_a_while() -> None:
    engine = Engine()
    engine.direct_works = False
    routes = engine.routes()
    await routes.route("a")
    engine.now += 100
    await routes.route("a")
    assert engine.lookups == [False, True, True]
    engine.now += 301
    engine.direct_works = True
    assert (await routes.route("a")).side is Side.DIRECT


async def test_callers_at_the_same_time_share_one_lookup_and_one_of_them_may_leave() -> None:
    engine = Engine()
    routes = engine.routes()
    engine.gate.clear()
    callers = [asyncio.ensure_future(routes.route("a")) for _ in range(5)]
    await asyncio.sleep(0)
    callers[0].cancel()
    await asyncio.sleep(0)
    engine.gate.set()
    found = await asyncio.gather(*callers[1:])
    assert len({id(each) for each in found}) == 1
    assert engine.lookups == [False]
    assert callers[0].cancelled()


async def test_forgetting_concerns_only_the_route_that_failed() -> None:
    engine = Engine()
    routes = engine.routes("never")
    first = await routes.route("a")
    second = await routes.route("a", max_age=-1)
    routes.forget("a", first)
    assert await routes.route("a") is second
    routes.forget("a")
    assert await routes.route("a") is not second


async def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ROUTES", 3)
    engine = Engine()
    routes = engine.routes("never")
    for name in ("a", "b", "c", "a", "d"):
        await routes.route(name)
    assert len(engine.lookups) == 4
    await routes.route("a")
    assert len(engine.lookups) == 4
    await routes.route("b")
    assert len(engine.lookups) == 5


async def test_a_lookup_that_is_unclear_means_not_executed() -> None:
    engine = Engine()
    engine.error = Unclear("HTTP 502")
    with pytest.raises(NotReached):
        await engine.routes().route("a")


async def test_a_sandbox_that_is_gone_is_gone_in_every_mode() -> None:
    engine = Engine()
    engine.error = SandboxMissing("gone")
    modes: tuple[Mode, ...] = ("auto", "always", "never")
    for mode in modes:
        with pytest.raises(SandboxMissing):
            await engine.routes(mode).route("a")


@pytest.mark.parametrize(
    "endpoint",
    [
        "169.254.169.254",
        "10.1.0.1:80",
        "[::ffff:10.1.0.1]:80",
        "[2001:db9::1]:80",
        "localhost:44772",
        "no.such.invalid",
    ],
)
async def test_an_endpoint_outside_the_networks_is_never_contacted(endpoint: str) -> None:
    engine = Engine(endpoint)
    with pytest.raises(EngineError) as caught:
        await engine.routes("never", ["10.0.0.0/16", "2001:db8::/32"]).route("a")
    assert isinstance(caught.value, NotReached)
    assert engine.pings == []


@pytest.mark.parametrize("endpoint", ["10.0.0.1:80", "[::ffff:10.0.0.1]:80", "[2001:db8::1]:80"])
async def test_an_endpoint_inside_them_is(endpoint: str) -> None:
    route = await Engine(endpoint).routes("auto", ["10.0.0.0/16", "2001:db8::/32"]).route("a")
    assert route.side is Side.DIRECT


async def test_a_name_is_resolved_checked_and_pinned() -> None:
    route = await Engine("localhost:44772/x").routes("never", ["127.0.0.0/8", "::1/128"]).route("a")
    assert route.base in ("https://127.0.0.1:44772/x", "https://[::1]:44772/x")
    assert route.headers == {"Host": "localhost:44772"}
    assert route.server_name == "localhost"


async def test_auto_takes_the_proxy_in_place_of_an_endpoint_outside_the_networks() -> None:
    engine = Engine("192.168.0.1:80")
    route = await engine.routes("auto", ["10.0.0.0/16"]).route("a")
    assert route.side is Side.PROXY
    assert engine.pings == [Side.PROXY]


async def test_closing_ends_lookups_under_way() -> None:
    engine = Engine()
    routes = engine.routes()
    engine.gate.clear()
    caller = asyncio.ensure_future(routes.route("a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await routes.close()
    with pytest.raises(NotReached):
        await caller
