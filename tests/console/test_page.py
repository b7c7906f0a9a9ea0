"""The console in a real browser: what people do on it, what they must never be able to do, and who can use it."""

import hashlib
import json
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import JSHandle, Page, Route, expect

from service.tenants import lines_for, new_key
from tests.acceptance.http_rig import Replica
from tests.faults.rig import Rig
from tests.support.browser import Browser
from tests.support.processes import ManagedProcess, Spawner

pytestmark = pytest.mark.acceptance

PICTURES = Path(__file__).resolve().parents[2] / "build" / "console"
WIDTHS = {"wide": {"width": 1280, "height": 800}, "narrow": {"width": 360, "height": 720}}
HOSTILE = "<img src=x onerror=evil()><script>evil()</script>\u202egnp\u0007\x1b[31m"
"""As a command, a label and output: markup, a turn of direction, controls."""


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """One replica with everything in it, for all tests here that don't end it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("ONCEBOX_REDIS_URL", raising=False)
        started: list[ManagedProcess] = []

        def spawn(argv: Any, *, name: str, env: Any) -> ManagedProcess:
            process = ManagedProcess(argv, folder=tmp_path_factory.mktemp("console"), name=name, env=env)
            started.append(process.__enter__())
            return process

        yield Replica(spawn)  # type: ignore[arg-type]
        for process in started:
            process.__exit__(None, None, None)


async def shown(browser: Browser, url: str) -> Page:
    """The console, and its part behind `#`."""
    await browser.open(url)
    return browser.page


async def accessible(page: Page, name: str) -> None:
    """No rule of the engine is broken, wide and narrow, light and dark; and a picture of each."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for width, viewport in WIDTHS.items():
        await page.set_viewport_size(viewport)  # type: ignore[arg-type]
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            found = (await Axe().run(page)).response["violations"]
            told = [(rule["id"], [node["html"] for node in rule["nodes"]][:3]) for rule in found]
            assert not told, f"{name}, {width}, {scheme}: {told}"
            overflow = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, f"{name}, {width}: {overflow} pixels too wide"
            await page.screenshot(path=PICTURES / f"{name}-{width}-{scheme}.png")
    await page.set_viewport_size(WIDTHS["wide"])  # type: ignore[arg-type]
    await page.emulate_media(color_scheme="light")


async def test_a_job_is_found_followed_and_cancelled(replica: Replica, browser: Browser) -> None:
    sandbox = replica.sandbox(metadata={"team": "red"})
    other = replica.submit(sandbox, "echo other", metadata={"run": "1"})
    job = replica.submit(
        sandbox, r"printf '\033[31mred\033[0m\n'; seq 1 300; echo end; sleep 600", metadata={"run": "2"}
    )
    page = await shown(browser, f"{replica.url}/console#/jobs?sandbox_id={sandbox}")
    rows = page.get_by_role("row").filter(has=page.get_by_role("cell"))
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("running")
    await expect(page.get_by_role("img")).to_have_count(2)  # the charts of the last hour
    await accessible(page, "jobs")

    await page.get_by_label("Text").fill("ECHO OTH")
    await page.get_by_label("Text").press("Enter")
    await expect(rows).to_have_count(1)
    await page.get_by_role("button", name="Clear filters").click()
    await page.get_by_label("Metadata").fill("run=2")
    await page.get_by_label("Metadata").press("Enter")
    await expect(rows).to_have_count(1)
    assert "metadata=run%3D2" in page.url
    await browser.open(page.url)  # the link shows the same
    await expect(rows).to_have_count(1)

    await rows.first.get_by_role("link").first.click()
    output = page.get_by_role("region", name="Output")
    await expect(output).to_contain_text("300\nend", use_inner_text=True)
    assert await output.locator("span.f1").text_content() == "red"
    await page.get_by_label("Search").fill("29")
    await expect(page.get_by_text("13 found")).to_be_visible()
    await page.get_by_label("Search").press("Enter")
    await expect(page.get_by_text("1 of 13")).to_be_visible()
    await accessible(page, "job")
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="No, keep it").click()
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Cancel the job").click()
    await expect(page.get_by_label("Facts").get_by_text("cancelled", exact=True).first).to_be_visible()
    assert replica.follow(job)[0]["state"] == "cancelled"
    assert replica.follow(other)[0]["state"] == "exited"
    assert browser.wrong == []


async def dropped(page: Page, name: str, text: str) -> JSHandle:
    """What a browser hands over where a file is let fall."""
    script = """([name, text]) => {
        const transfer = new DataTransfer();
        transfer.items.add(new File([text], name));
        return transfer;
    }"""
    return await page.evaluate_handle(script, [name, text])


async def test_a_sandbox_is_used_and_deleted(replica: Replica, browser: Browser) -> None:
    sandbox = replica.sandbox()
    page = await shown(browser, f"{replica.url}/console#/sandboxes")
    await page.get_by_role("link", name=sandbox).click()
    await expect(page.get_by_role("timer")).to_contain_text("in 59:")
    await expect(page.get_by_text("No jobs ran in here yet.")).to_be_visible()
    await accessible(page, "sandbox")
    await page.get_by_label("Live for").fill("2h")
    await page.get_by_role("button", name="Renew").click()
    await expect(page.get_by_role("timer")).to_contain_text("in 1:59:")
    await page.get_by_role("button", name="Pause").click()
    await page.get_by_role("button", name="Resume").click()
    await expect(page.get_by_role("button", name="Pause")).to_be_visible()

    files = page.get_by_role("region", name="Files")
    async with page.expect_file_chooser() as choosing:
        await files.get_by_role("button", name="Upload").click()
    await (await choosing.value).set_files({"name": "from the page <b>", "mimeType": "", "buffer": b"some\x07 text\n"})
    await files.get_by_role("button", name="from the page <b>", exact=True).click()
    await expect(page.get_by_role("region", name="Contents of from the page <b>")).to_have_text("some\\x07 text")
    async with page.expect_download() as starting:
        await files.get_by_role("button", name="Download from the page <b>").click()
    assert (await (await starting.value).path()).read_bytes() == b"some\x07 text\n"
    await page.locator(".drop").dispatch_event(
        "drop", {"dataTransfer": await dropped(page, "dropped.txt", "fell in\n")}
    )
    await files.get_by_role("button", name="dropped.txt", exact=True).click()
    await expect(page.get_by_role("region", name="Contents of dropped.txt")).to_have_text("fell in")

    await page.get_by_label("Command").fill("echo from the page; exit 3")
    key = await page.locator("form.run code").inner_text()
    await page.get_by_role("button", name="Run").click()
    await expect(page.get_by_role("region", name="Output")).to_contain_text("from the page")
    await expect(page.get_by_text("exited with 3").first).to_be_visible()
    life = page.get_by_role("list", name="What happened").get_by_role("listitem")
    await expect(life.last).to_contain_text("ended, and all of it recorded")
    await expect(life.first).to_contain_text("replica")
    command_id = page.url.rpartition("/")[2]
    body = {"sandbox_id": sandbox, "command": "echo from the page; exit 3", "timeout": 3600}
    again = replica.http.request(
        "POST", f"{replica.url}/v1/exec-jobs", body=json.dumps(body),
        headers={"Content-Type": "application/json", "Idempotency-Key": key},
    )  # fmt: skip
    assert again.json()["command_id"] == command_id, "the key that was shown is the job's"

    await page.go_back()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("button", name="Delete the sandbox").click()
    await page.wait_for_url("**/console#/sandboxes")
    assert replica.ask("GET", f"/v1/sandboxes/{sandbox}").status == 404
    await browser.open(f"{replica.url}/console#/sandboxes/{sandbox}")
    await expect(page.get_by_text("No such sandbox is known here")).to_be_visible()
    assert [said for said in browser.wrong if "404" not in said] == []


async def test_hostile_text_stays_text(replica: Replica, browser: Browser) -> None:
    sandbox = replica.sandbox()
    hostile = replica.submit(sandbox, f": '{HOSTILE}'; printf %s '{HOSTILE}'", metadata={"evil": "x"})
    replica.follow(hostile)
    await browser.page.add_init_script("window.evil = () => { window.hurt = true }")
    page = await shown(browser, f"{replica.url}/console#/jobs?sandbox_id={sandbox}")
    link = page.get_by_role("link", name="onerror=evil")
    assert "<script>evil()</script>\\u202egnp\\x07\\x1b[31m" in await link.inner_text()
    await link.click()
    output = page.get_by_role("region", name="Output")
    await expect(output).to_contain_text("<img src=x onerror=evil()><script>evil()</script>\\u202egnp")
    for where in (f"#/jobs/{HOSTILE}", f"#/sandboxes/{HOSTILE}", f"#/jobs?q={HOSTILE}&metadata={HOSTILE}%3Dx"):
        await browser.open(f"{replica.url}/console{where}")
        await expect(page.get_by_role("heading").first).to_be_visible()
    assert await page.evaluate("[window.hurt, document.images.length, document.scripts.length]") == [None, 0, 1]
    assert not [said for said in browser.wrong if "status of 4" not in said]


async def test_the_key_is_kept_for_the_tab_and_each_tenant_sees_its_own(
    spawn: Spawner, browser: Browser, tmp_path: Path
) -> None:
    keys = {tenant: new_key() for tenant in ("red", "blue")}
    tenants = tmp_path / "tenants.toml"
    tenants.write_text("\n".join(lines_for(tenant, key) for tenant, key in keys.items()))
    replica = Replica(spawn, {"ONCEBOX_TENANTS": str(tenants)})
    for tenant, key in keys.items():
        answer = replica.ask("POST", "/v1/sandboxes", {"metadata": {"of": tenant}}, Authorization=f"Bearer {key}")
        assert answer.status == 201
    asked: list[str] = []
    browser.page.on("request", lambda request: asked.append(request.url))
    page = await shown(browser, f"{replica.url}/console#/sandboxes")
    await accessible(page, "sign-in")
    await page.get_by_label("API key").fill("wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_text("does not know this key")).to_be_visible()
    await page.get_by_label("API key").fill(keys["red"])
    await page.get_by_label("API key").press("Enter")
    await expect(page.get_by_role("table")).to_contain_text("of=red")
    assert "of=blue" not in await page.content()
    await page.reload()
    await expect(page.get_by_role("table")).to_contain_text("of=red")
    assert not [url for url in asked if keys["red"] in url or "wrong" in url]
    assert await page.context.cookies() == []
    assert await page.evaluate("[localStorage.length, sessionStorage.length, location.href]") == [0, 1, page.url]
    other = await page.context.new_page()
    await other.goto(f"{replica.url}/console")
    await expect(other.get_by_label("API key")).to_be_visible()  # another tab knows nothing of it
    await other.close()
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_label("API key")).to_be_visible()
    assert await page.evaluate("sessionStorage.length") == 0


def many(count: int, start: int = 0) -> list[dict[str, Any]]:
    """Jobs as the API lists them, newest first."""
    return [
        {
            "command_id": f"cmd_{number:06}", "sandbox_id": "box", "state": "running" if number % 50 == 0 else "exited",
            "exit_code": 0, "timed_out": False, "reason": None, "kind": "job", "command": f"echo {number}",
            "metadata": {}, "timeout": 60, "submitted_at": f"2026-01-01T00:00:00.{number:06}Z",
            "started_at": None, "finished_at": None, "fenced": True,
        }
        for number in range(start + count - 1, start - 1, -1)
    ]  # fmt: skip


async def test_thousands_of_jobs_are_a_few_rows_and_at_most_one_request_a_second(
    replica: Replica, browser: Browser
) -> None:
    jobs = many(2000)
    asked: list[str] = []

    async def answer(route: Route) -> None:
        at = int(found[1]) if (found := re.search(r"page_token=(\d+)", route.request.url)) else 0
        token = str(at + 200) if at + 200 < len(jobs) else None
        await route.fulfill(json={"items": jobs[at : at + 200], "next_page_token": token})

    page = browser.page
    await page.route("**/v1/exec-jobs?*", answer)
    await page.clock.install()
    await browser.open(f"{replica.url}/console")
    table = page.get_by_role("table", name="Jobs")
    for _ in range(60):
        if await page.get_by_text("2000 shown").is_visible():
            break
        await table.evaluate("element => { element.scrollTop = element.scrollHeight }")
        await page.clock.run_for(1000)
    await expect(page.get_by_text("2000 shown")).to_be_visible()
    await expect(table).to_have_attribute("aria-rowcount", "2001")
    assert await page.locator("[role=row]").count() < 80
    await table.evaluate("element => { element.scrollTop = element.scrollHeight }")
    await expect(table.get_by_role("link", name="echo 0", exact=True)).to_be_visible()
    asked.clear()
    page.on("request", lambda request: asked.append(request.url) if "/v1/" in request.url else None)
    for _ in range(120):
        await page.clock.run_for(100)
        await page.evaluate("fetch('healthz').then((answer) => answer.text())")  # what is under way is answered
    assert 5 < len(asked) <= 13, "in twelve seconds, whatever it is that is asked for"
    assert [url for url in asked if "page_token" in url], "what runs is kept up to date, however far down"

    await table.evaluate("element => { element.scrollTop = 0 }")
    await table.focus()
    for _ in range(60):
        await page.keyboard.press("ArrowDown")
    assert await page.evaluate("document.activeElement.textContent") == "echo 1940"
    await page.keyboard.press("Enter")
    await page.wait_for_url("**/console#/jobs/cmd_001940")


async def test_100_mb_of_output_are_shown_by_their_end_and_downloaded_whole(replica: Replica, browser: Browser) -> None:
    sandbox = replica.sandbox()
    job = replica.submit(sandbox, "yes 'a line of some length, again and again' | head -c 100000000; echo; echo end")
    page = await shown(browser, f"{replica.url}/console#/jobs/{job}")
    output = page.get_by_role("region", name="Output")
    await expect(output).to_contain_text("end")
    await expect(page.get_by_text("exited with 0").first).to_be_visible()
    assert await page.locator(".block").count() < 150
    await page.reload()
    await expect(output).to_contain_text("end")
    await expect(page.get_by_text(re.compile("The first 98 MB are not shown"))).to_be_visible()
    async with page.expect_download() as starting:
        await page.get_by_role("button", name="Download all").click()
    with (await (await starting.value).path()).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    line = b"a line of some length, again and again\n"
    whole = (line * (100_000_000 // len(line) + 1))[:100_000_000] + b"\nend\n"
    assert digest == hashlib.sha256(whole).hexdigest()


@pytest.fixture
async def rig(_redis_is_there: None, spawn: Spawner, tmp_path: Path) -> AsyncIterator[Rig]:
    async with Rig(spawn, tmp_path) as rig:
        yield rig


@pytest.mark.integration
async def test_a_replica_that_is_replaced_under_an_open_page_is_found_again(rig: Rig, browser: Browser) -> None:
    await rig.start(replicas=1)
    sandbox_id = await rig.sandbox()
    gate = f"{rig.place}/gate"
    command = f"seq 1 20; while [ ! -e {gate} ]; do sleep 0.05; done; seq 21 40"
    job = await rig.caller.submit(rig.urls[0], sandbox_id, command, key=None)
    page = await shown(browser, f"{rig.urls[0]}/console#/jobs/{job.command_id}")
    output = page.get_by_role("region", name="Output")
    await expect(output).to_contain_text("20")
    rig.replicas[0].kill()
    await expect(page.get_by_text("reconnecting")).to_be_visible()
    await rig.replicas[0].start()
    await expect(page.get_by_text("live", exact=True)).to_be_visible()
    (rig.directory / "gate").touch()
    await expect(page.get_by_text("exited with 0").first).to_be_visible()
    expected = "\n".join(str(number) for number in range(1, 41))
    await expect(output).to_have_text(re.compile(rf"^\s*{expected}\s*$"), use_inner_text=True)
