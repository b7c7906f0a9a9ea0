"""A browser for each test, which must not complain of anything."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from playwright.async_api import expect

from tests.support.browser import Browser, chromium
from tests.support.missing import missing
from tests.support.waiting import PATIENCE

expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture
async def browser(tmp_path: Path) -> AsyncIterator[Browser]:
    if chromium() is None:
        missing("no Chromium: neither ONCEBOX_TEST_CHROMIUM nor PATH has one; as root, `make test` installs one")
    async with Browser(tmp_path) as browser:
        yield browser
