"""Named points at which a fault test can hold a replica (and kill or freeze it there). Off unless switched on.

``ONCEBOX_TEST_PAUSE_POINTS`` names a directory. While it holds a file of a point's name, whoever reaches that point
adds a byte to ``<name>.<pid>.hit`` beside it and waits until the file is gone.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

_DIRECTORY = os.environ.get("ONCEBOX_TEST_PAUSE_POINTS")

AFTER_CLAIM = "after_claim"
BEFORE_DISPATCH = "before_dispatch"
DISPATCHED = "dispatched"
"""The claim says so; nothing has left for the engine yet."""
AFTER_DISPATCH = "after_dispatch"
BEFORE_SETTLE = "before_settle"


async def reach(point: str) -> None:
    """Wait here for as long as a test wants it."""
    if _DIRECTORY is None:
        return
    held = Path(_DIRECTORY, point)
    if held.exists():  # noqa: ASYNC240 - switched on by tests alone
        with held.with_name(f"{point}.{os.getpid()}.hit").open("ab") as hits:
            hits.write(b".")
        while held.exists():  # noqa: ASYNC110, ASYNC240 - another process takes the file away
            await asyncio.sleep(0.005)
