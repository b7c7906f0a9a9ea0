"""What the doctor asks of an engine."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from service.cli.checks.probes import _reach_execd
from service.messages import SandboxState
from service.ports.engine import Engine, NotReached, SandboxInfo, SandboxListing
from service.settings import load


class RunningSandboxes:
    """An engine whose sandboxes all run, and whose daemons are dead but for those of `alive`."""

    def __init__(self, ids: Sequence[str], alive: Sequence[str]) -> None:
        self.ids = ids
        self.alive = alive

    async def list_sandboxes(self, *_: Any, page_size: int, **__: Any) -> SandboxListing:
        found = [SandboxInfo(id=each, state=SandboxState.RUNNING) for each in self.ids]
        return SandboxListing(items=found[:page_size], has_next=False)

    async def ping(self, sandbox_id: str) -> None:
        if sandbox_id not in self.alive:
            raise NotReached("no answer")


@pytest.mark.parametrize(
    ("ids", "alive", "verdict"),
    [(["a", "b", "c"], ["c"], "ok"), (["a", "b"], [], "wrong"), ([], [], "skipped")],
)
async def test_one_dead_daemon_says_nothing_of_the_way_there(ids: list[str], alive: list[str], verdict: str) -> None:
    engine = cast(Engine, RunningSandboxes(ids, alive))
    assert (await _reach_execd(engine, load({}), attempt=False)).verdict == verdict
