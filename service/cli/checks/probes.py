"""The probes of ``oncebox doctor``: they look at what the settings name. Each has a deadline, and none raises."""

from __future__ import annotations

import asyncio
import shutil
import time
from email.utils import parsedate_to_datetime
from ipaddress import ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import aiohttp
import msgspec

from service.cli.checks.findings import Finding, judge_clock, judge_store, ok, warning, wrong
from service.cli.extras import extra
from service.cli.problems import Trouble, sentence
from service.cli.target import Target, configured_target, connect, open_target
from service.errors import OnceboxError, StoreUnavailable
from service.messages import Health, SandboxState
from service.ports.engine import Denied, Engine, EngineError, SandboxSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from service.settings import Settings

PROBE_TIMEOUT = 10.0
"""Seconds for one probe."""
SANDBOXES_ASKED = 5
NEW_SANDBOX_SECONDS = 300.0
"""An image may have to be pulled."""


def _shown(url: str) -> str:
    """``url`` without a password."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


# -- Redis


async def check_store(settings: Settings) -> AsyncIterator[Finding]:
    """Redis: reachable, new enough, and set up so that it keeps what it is given."""
    about, url = "Redis", settings.redis_url
    if url.startswith("memory:"):
        yield ok(about, "memory://: kept in the service's process, and forgotten with it")
        return
    try:
        with extra("server", "A look at Redis"):
            from service.store import open_store
    except Trouble as error:
        yield warning(about, str(error))
        return
    try:
        store = open_store(url, retention=settings.retention, record_output=settings.record_output)
    except ValueError as error:
        yield wrong(about, str(error), "Correct ONCEBOX_REDIS_URL.")
        return
    try:
        async with asyncio.timeout(PROBE_TIMEOUT):
            health = await store.health()
            ahead = await store.now() / 1000 - time.time()
    except (StoreUnavailable, TimeoutError) as error:
        said = error.detail if isinstance(error, StoreUnavailable) else f"no answer within {PROBE_TIMEOUT:.0f} s"
        yield wrong(
            about,
            f"{_shown(url)} can't be used: {said}",
            "Start it, or correct ONCEBOX_REDIS_URL (host, port, password, database).",
        )
        return
    finally:
        await store.close()
    yield ok(about, f"{_shown(url)} answers")
    for finding in (*judge_store(health), judge_clock("Redis clock", ahead)):
        yield finding


# -- the engine


async def check_engine(settings: Settings, *, attempt: bool) -> AsyncIterator[Finding]:
    """The engine: reachable, our key taken, and its sandboxes' daemons reachable from here."""
    about, url = "engine", settings.engine_url
    if url.startswith("local:"):
        yield _judge_local(about)
        return
    try:
        with extra("server", "A look at the engine"):
            from service.engine import OpenSandboxEngine
    except Trouble as error:
        yield warning(about, str(error))
        return
    try:
        engine = OpenSandboxEngine(
            url,
            api_key=settings.engine_api_key or "",
            proxy=settings.engine_proxy,
            networks=[ip_network(network) for network in settings.engine_networks],
        )
    except ValueError as error:
        yield wrong(about, str(error), "Correct ONCEBOX_ENGINE_URL or ONCEBOX_ENGINE_API_KEY.")
        return
    try:
        finding = await _reach(engine, url)
        yield finding
        yield judge_clock("engine's clock", await _clock_ahead(f"{url}/health"))
        if finding.verdict == "ok":
            yield await _reach_execd(engine, settings, attempt=attempt)
    finally:
        await engine.close()


def _judge_local(about: str) -> Finding:
    said = "local://: started with the service, on this machine; for development, not a boundary"
    if shutil.which("bwrap") is None:
        mend = "Install bubblewrap: without it sandboxes are plain processes that see each other's files."
        return warning(about, f"{said}; no bwrap here", mend)
    return ok(about, said)


async def _reach(engine: Engine, url: str) -> Finding:
    about = "engine"
    try:
        await asyncio.wait_for(engine.check(), PROBE_TIMEOUT)
    except Denied:
        return wrong(about, f"{_shown(url)} refuses our key", "Correct ONCEBOX_ENGINE_API_KEY.")
    except (EngineError, TimeoutError) as error:
        said = error.message if isinstance(error, EngineError) else f"no answer within {PROBE_TIMEOUT:.0f} s"
        return wrong(about, f"{_shown(url)} can't be used: {said}", "Start it, or correct ONCEBOX_ENGINE_URL.")
    return ok(about, f"{_shown(url)} answers and takes our key")


async def _reach_execd(engine: Engine, settings: Settings, *, attempt: bool) -> Finding:
    about = "execd"
    mend = "Open the way to port 44772 of the sandboxes, or set ONCEBOX_ENGINE_PROXY=always."
    try:
        if attempt:
            async with asyncio.timeout(NEW_SANDBOX_SECONDS):
                return await _try_execd(engine, settings)
        async with asyncio.timeout(PROBE_TIMEOUT):
            # One of them may be starting, or its daemon dead: the engine calls it running all the same.
            running = await engine.list_sandboxes({}, states=[SandboxState.RUNNING], page_size=SANDBOXES_ASKED)
            asked = [each.id for each in running.items[:SANDBOXES_ASKED]]
            answers = await asyncio.gather(*map(engine.ping, asked), return_exceptions=True)
        for sandbox_id, answer in zip(asked, answers, strict=True):
            if not isinstance(answer, BaseException):
                return ok(about, f"answers in sandbox {sandbox_id}")
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
    except (EngineError, TimeoutError) as error:
        said = error.message if isinstance(error, EngineError) else "no answer in time"
        return wrong(about, f"the daemon in a sandbox can't be reached from here: {said}", mend)
    return Finding(about, "skipped", "no sandbox is running to ask; `oncebox doctor --try` makes one")


async def _try_execd(engine: Engine, settings: Settings) -> Finding:
    created = await engine.create_sandbox(
        SandboxSpec(image=settings.image, entrypoint=["sleep", "infinity"], cpu="500m", memory="512Mi", timeout=300)
    )
    try:
        while True:
            try:
                await engine.run_short(created.id, "true", timeout=PROBE_TIMEOUT)
            except EngineError:
                state = (await engine.get_sandbox(created.id)).state
                if not state.live:
                    said = f"a sandbox of {settings.image} is {state.value} at once"
                    return wrong("execd", said, "Correct ONCEBOX_IMAGE.")
                await asyncio.sleep(0.5)
            else:
                return ok("execd", f"ran a command in a new sandbox of {settings.image}")
    finally:
        await engine.delete_sandbox(created.id)


# -- the service


async def check_service(settings: Settings, *, attempt: bool) -> AsyncIterator[Finding]:
    """The service that ``ONCEBOX_URL`` names: reachable, ready, our key taken."""
    about = "service"
    if settings.url is None and attempt:
        yield await _try_embedded(settings)
        return
    if settings.url is None:
        yield Finding(about, "skipped", "ONCEBOX_URL is not set: `oncebox run` starts a stack of its own")
        return
    url = settings.url
    finding = await _ready(url)
    yield finding
    if finding.verdict == "wrong":
        return
    yield judge_clock("service's clock", await _clock_ahead(f"{url}/healthz"))
    yield await _admitted(settings)
    if attempt:
        yield await _try_command(configured_target(settings), "ran in a new sandbox of the service")


async def _ready(url: str) -> Finding:
    about = "service"
    try:
        async with _session() as session, session.get(f"{url}/readyz", allow_redirects=False) as answer:
            status, body = answer.status, await answer.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        said = str(error) or "no answer in time"
        return wrong(about, f"{_shown(url)} can't be reached: {said}", "Start it, or correct ONCEBOX_URL.")
    try:
        health = msgspec.json.decode(body, type=Health)
    except msgspec.MsgspecError:
        return wrong(about, f"{_shown(url)} is not Oncebox (HTTP {status})", "Correct ONCEBOX_URL.")
    if health.status != "ok":
        said = "; ".join(health.reasons) or "it does not say why"
        return wrong(about, f"{_shown(url)} is not ready: {said}", "Run `oncebox doctor` where it runs.")
    return ok(about, f"{_shown(url)} is ready")


async def _admitted(settings: Settings) -> Finding:
    about = "API key"
    try:
        async with asyncio.timeout(PROBE_TIMEOUT), connect(configured_target(settings)) as client:
            async for _ in client.sandboxes():
                break
    except OnceboxError as error:
        return wrong(about, sentence(error), "Correct ONCEBOX_API_KEY, or ONCEBOX_TENANTS where the service runs.")
    except TimeoutError:
        return warning(about, "no answer in time")
    return ok(about, "taken" if settings.api_key else "none needed")


async def _try_embedded(settings: Settings) -> Finding:
    """As ``oncebox run`` does it where no service is named."""
    try:
        async with asyncio.timeout(NEW_SANDBOX_SECONDS), open_target(settings) as target:
            return await _try_command(target, "ran in a stack of its own, as `oncebox run` starts one")
    except Trouble as error:
        return wrong("a command", str(error), "Name a service in ONCEBOX_URL, or mend what `oncebox run` needs.")
    except TimeoutError:
        return wrong("a command", "no stack within 5 minutes", "`oncebox -v run -- true` shows where it stops.")


async def _try_command(target: Target, ran: str) -> Finding:
    about = "a command"
    try:
        async with asyncio.timeout(NEW_SANDBOX_SECONDS), connect(target) as client:
            sandbox = await client.create_sandbox(timeout=300)
            try:
                result = await sandbox.run("echo works")
            finally:
                await sandbox.delete()
    except OnceboxError as error:
        return wrong(about, sentence(error), "Run `oncebox doctor` where the service runs.")
    except TimeoutError:
        return wrong(about, "did not run in time", "Run `oncebox doctor` where the service runs.")
    if result.output.strip() != "works":
        return wrong(about, f"printed {result.output!r}", "Look into the image (ONCEBOX_IMAGE).")
    return ok(about, ran)


# -- HTTP


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PROBE_TIMEOUT))


async def _clock_ahead(url: str) -> float | None:
    """Seconds by which the server's clock (its ``Date``) is ahead of ours; None: it shows none."""
    try:
        async with _session() as session, session.get(url, allow_redirects=False) as answer:
            said = answer.headers.get("Date")
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None
    try:
        return parsedate_to_datetime(said).timestamp() + 0.5 - time.time() if said else None
    except ValueError:
        return None
