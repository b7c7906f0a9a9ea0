"""A headless Chromium, driven by Playwright.

Example:
    async with Browser(folder) as browser:
        await browser.open("http://127.0.0.1:8700/healthz")
        assert await browser.evaluate("1 + 1") == 2
"""

import asyncio
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from playwright.async_api import Page, async_playwright

from tests.support.waiting import PATIENCE

NAMES = (os.environ.get("ONCEBOX_TEST_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
FLAGS = ["--disable-gpu", "--disable-quic", "--disable-component-update", "--disable-sync"]


def chromium() -> str | None:
    """The browser: `ONCEBOX_TEST_CHROMIUM`, else what PATH has, else None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page and a profile of its own; it ends with its block."""

    page: Page

    def __init__(self, folder: Path) -> None:
        self._profile = folder / "browser"
        self._playwright = async_playwright()
        self.wrong: list[str] = []
        """What pages complained about: uncaught errors, refusals of their policy, anything on their consoles."""

    async def __aenter__(self) -> Self:
        program = chromium()
        assert program is not None, "no Chromium"
        started = await self._playwright.start()
        self._context = await started.chromium.launch_persistent_context(
            self._profile, executable_path=program, headless=True, chromium_sandbox=False, args=FLAGS
        )
        self._context.set_default_timeout(PATIENCE * 1000)
        self.page = self._context.pages[0]
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._context.close()
        await self._playwright.__aexit__(kind, error, trace)

    async def open(self, url: str) -> None:
        """Goes to a page, and returns when it is loaded."""
        await self.page.goto(url)

    async def evaluate(self, expression: str) -> Any:
        """What a JavaScript expression is in the page."""
        return await self.page.evaluate(expression)

    async def becomes(self, expression: str, value: Any, *, timeout: float = PATIENCE) -> None:
        """Waits until an expression has a value; fails with the last one it had."""
        deadline = asyncio.get_running_loop().time() + timeout
        while (found := await self.evaluate(expression)) != value:
            assert asyncio.get_running_loop().time() < deadline, f"{expression}: {found!r}, not {value!r}"
            await asyncio.sleep(0.05)
