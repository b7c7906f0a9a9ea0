"""Waiting in async tests for what must come to be, with a deadline and no sleeping for luck."""

import asyncio
import inspect
from collections.abc import Callable

POLL_INTERVAL = 0.005

PATIENCE = 60.0
"""Seconds that tests wait for what takes milliseconds: a machine may have six times the work that it can do."""


async def eventually(condition: Callable[[], object], *, timeout: float = PATIENCE) -> None:
    """Returns as soon as the condition is true; fails, and shows its source, after `timeout` seconds."""
    try:
        async with asyncio.timeout(timeout):
            while not condition():
                await asyncio.sleep(POLL_INTERVAL)
    except TimeoutError:
        raise AssertionError(f"not within {timeout} s: {inspect.getsource(condition).strip()}") from None
