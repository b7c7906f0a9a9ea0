"""A real browser follows a job: its own `EventSource` on `/v1/exec-jobs/{id}/events`."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.faults.rig import Rig
from tests.support.browser import Browser, chromium
from tests.support.missing import missing
from tests.support.processes import Spawner

pytestmark = [pytest.mark.acceptance, pytest.mark.integration]

PAGE = """
window.seen = {output: "", opened: 0, errors: 0, states: [], end: null, first: null};
window.source = new EventSource(PATH);
source.onopen = () => { seen.opened += 1 };
source.onerror = () => { seen.errors += 1 };
source.addEventListener("output", event => {
  const told = JSON.parse(event.data);
  seen.output = told.replace ? told.output : seen.output + told.output;
});
source.addEventListener("state", event => seen.states.push(JSON.parse(event.data).state));
source.addEventListener("end", event => { seen.end = JSON.parse(event.data) });
true
"""
"""What a page does to follow a job. It never closes its source: the server has to end it."""
CLOSED = 2


@pytest.fixture
async def rig(_redis_is_there: None, spawn: Spawner, tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(spawn, tmp_path) as rig:
        yield rig


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    if chromium() is None:
        missing("no Chromium: neither ONCEBOX_TEST_CHROMIUM nor PATH has one; as root, `make test` installs one")
    async with Browser(tmp_path) as browser:
        yield browser


async def follow(browser: Browser, rig: Rig, command_id: str) -> None:
    """From a page of the replica's own: the same origin."""
    await browser.open(f"{rig.urls[0]}/healthz")
    await browser.evaluate(PAGE.replace("PATH", json.dumps(f"/v1/exec-jobs/{command_id}/events")))


async def test_a_page_sees_output_as_it_comes_and_stops_at_the_end(rig: Rig, browser: Browser) -> None:
    await rig.start(replicas=1)
    sandbox_id = await rig.sandbox()
    gate = f"{rig.place}/gate"
    command = f"echo first ü€; while [ ! -e {gate} ]; do sleep 0.05; done; echo second; exit 7"
    job = await rig.caller.submit(rig.urls[0], sandbox_id, command, key=None)
    await follow(browser, rig, job.command_id)
    await browser.becomes("seen.output", "first ü€\n")
    assert await browser.evaluate("seen.end") is None
    (rig.directory / "gate").touch()
    await browser.becomes("seen.output", "first ü€\nsecond\n")
    await browser.becomes("seen.end && [seen.end.state, seen.end.exit_code]", ["exited", 7])
    # The stream is over, so the browser comes again by itself, and is answered 204.
    await browser.becomes("source.readyState", CLOSED)
    assert await browser.evaluate("[seen.opened, seen.output]") == [1, "first ü€\nsecond\n"]


async def test_a_page_goes_on_where_it_was_when_the_replica_comes_back(rig: Rig, browser: Browser) -> None:
    """`Last-Event-ID`: nothing is shown twice, nothing is missing."""
    await rig.start(replicas=1)
    sandbox_id = await rig.sandbox()
    gate = f"{rig.place}/gate"
    held = f"[ $((i % 50)) -ne 0 ] || until [ -e {gate}$i ]; do sleep 0.05; done"
    command = f"for i in $(seq 1 150); do echo line $i; {held}; done"
    job = await rig.caller.submit(rig.urls[0], sandbox_id, command, key=None)
    await follow(browser, rig, job.command_id)
    for printed, kill in ((50, False), (100, True)):
        await browser.becomes(f"seen.output.endsWith('line {printed}\\n')", True)
        opened = await browser.evaluate("seen.opened")
        if kill:
            rig.replicas[0].kill()
        else:
            rig.replicas[0].signal_to_stop()
            await asyncio.to_thread(rig.replicas[0].process.wait)
        await rig.replicas[0].start()
        await browser.becomes("seen.opened", opened + 1)
        (rig.directory / f"gate{printed}").touch()
    (rig.directory / "gate150").touch()
    await browser.becomes("seen.end && seen.end.state", "exited")
    assert await browser.evaluate("seen.output") == "".join(f"line {number}\n" for number in range(1, 151))
    await browser.becomes("source.readyState", CLOSED)
    assert await browser.evaluate("seen.opened") == 3
