"""Takes the pictures of the console in docs/howto: ``python docs/draw_console.py`` (``make docs`` does so).

A service of its own, with some jobs in it, in a headless Chromium. Without one the pictures stay as they are.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.async_api import Page, async_playwright, expect

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from oncebox import Client

HOWTO = Path(__file__).resolve().parent / "howto"
ONCEBOX = Path(sys.executable).with_name("oncebox")
SIZE = {"width": 1000, "height": 600}
TESTS = r"""
for test in parser lexer printer; do printf '\033[32mPASSED\033[0m tests/test_%s.py\n' $test; done
printf '\033[31mFAILED\033[0m tests/test_cache.py: expected 3, got 4\n'; exit 1
"""


def chromium() -> str | None:
    """The browser of the tests."""
    names = (os.environ.get("ONCEBOX_TEST_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if (found := shutil.which(name))), None)


def fill(url: str) -> str:
    """Some sandboxes and jobs; the id of the job to show."""
    with Client(url) as client:
        sandbox = client.create_sandbox(metadata={"team": "red"})
        for number in range(1, 6):
            sandbox.submit(f"python evaluate.py --task {number}; true", metadata={"run": "7"}).result()
        sandbox.submit("make build; exit 2").result()
        shown = sandbox.submit(TESTS.strip(), metadata={"run": "7"})
        shown.result()
        sandbox.submit("sleep 600")
        return shown.id


async def draw(url: str, command_id: str, program: str) -> None:
    """The list of jobs in light, one job in dark."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, chromium_sandbox=False)
        page = await browser.new_page(viewport={"width": SIZE["width"], "height": SIZE["height"]})
        await page.goto(f"{url}/console#/jobs")
        await expect(page.get_by_role("img")).to_have_count(2)
        await picture(page, "console-jobs", dark=False)
        await page.goto(f"{url}/console#/jobs/{command_id}")
        await expect(page.get_by_role("region", name="Output")).to_contain_text("FAILED")
        await picture(page, "console-job", dark=True)
        await browser.close()


async def picture(page: Page, name: str, *, dark: bool) -> None:
    """What the browser shows now, as a small file."""
    await page.emulate_media(color_scheme="dark" if dark else "light")
    await page.screenshot(path=HOWTO / f"{name}.jpg", type="jpeg", quality=60)


def main() -> None:
    """Serve, fill, draw."""
    program = chromium()
    if program is None:
        print("No Chromium: the pictures of the console stay as they are.")  # noqa: T201
        return
    env = {name: value for name, value in os.environ.items() if not name.startswith("ONCEBOX_")}
    serve = subprocess.Popen([ONCEBOX, "serve", "--bind", "127.0.0.1:0"], env=env, stdout=subprocess.PIPE, text=True)
    try:
        assert serve.stdout is not None
        url = next(line.split('"')[3] for line in serve.stdout if line.startswith('{"url"'))
        asyncio.run(draw(url, fill(url), program))
    finally:
        serve.terminate()
        serve.wait()


if __name__ == "__main__":
    main()
