"""A headless Chromium, driven through its DevTools protocol.

Example:
    async with Browser(spawn, folder) as browser:
        await browser.open("http://127.0.0.1:8700/healthz")
        assert await browser.evaluate("1 + 1") == 2
"""

import asyncio
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.support.ports import LOOPBACK
from tests.support.processes import Spawner
from tests.support.waiting import eventually

NAMES = (os.environ.get("ONCEBOX_TEST_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--remote-debugging-port=0",
]
START_SECONDS = 60.0


def chromium() -> str | None:
    """The browser: `ONCEBOX_TEST_CHROMIUM`, else what PATH has, else None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One browser with one page and a profile of its own; it ends with its block."""

    def __init__(self, spawn: Spawner, folder: Path) -> None:
        self._profile = folder / "browser"
        self._spawn = spawn
        self._number = 0

    async def __aenter__(self) -> Self:
        program = chromium()
        assert program is not None, "no Chromium"
        argv = [program, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = self._spawn(argv, name="browser")
        told = self._profile / "DevToolsActivePort"
        await eventually(lambda: told.exists() and told.read_text().count("\n"), timeout=START_SECONDS)
        port = told.read_text().split()[0]
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://{LOOPBACK}:{port}/json/list") as reply:
            targets = await reply.json(content_type=None)
        page = next(each for each in targets if each["type"] == "page")
        self._socket = await self._session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._socket.close()
        await self._session.close()
        self._process.kill()

    async def open(self, url: str) -> None:
        """Goes to a page, and returns when it is loaded."""
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(30):
            while await self.evaluate("document.readyState + location.href") != f"complete{url}":
                await asyncio.sleep(0.05)

    async def evaluate(self, expression: str) -> Any:
        """What a JavaScript expression is in the page."""
        result = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def becomes(self, expression: str, value: Any, *, timeout: float = 30.0) -> None:
        """Waits until an expression has a value; fails with the last one it had."""
        deadline = asyncio.get_running_loop().time() + timeout
        while (found := await self.evaluate(expression)) != value:
            assert asyncio.get_running_loop().time() < deadline, f"{expression}: {found!r}, not {value!r}"
            await asyncio.sleep(0.05)

    async def call(self, method: str, **parameters: Any) -> Any:
        """One call of the protocol; events are passed over."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        async with asyncio.timeout(30):
            while True:
                message = await self._socket.receive_json()
                if message.get("id") == self._number:
                    assert "error" not in message, message
                    return message["result"]
