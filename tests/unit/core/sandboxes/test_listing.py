"""Lists of sandboxes over an engine that pages by offset."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.model import labels
from service.core.sandboxes import listing
from service.core.sandboxes.listing import SandboxList
from service.core.telemetry import Telemetry
from service.messages import SandboxPage, SandboxState
from service.ports.engine import SandboxInfo, SandboxListing

PAGE = 4
TENANT = {f"{labels.RESERVED}tenant": "alice"}


class Engine:
    """Newest first; those made at one moment in an order of its own."""

    def __init__(self, moments: list[int], order: random.Random) -> None:
        self.order = order
        self.pages_read = 0
        self.items: list[SandboxInfo] = []
        for moment in moments:
            self.make(moment)

    def make(self, moment: int) -> None:
        id = f"box-{self.order.getrandbits(32):08x}"
        info = SandboxInfo(id=id, state=SandboxState.RUNNING, metadata=TENANT, created_at=float(moment))
        self.items.append(info)
        self.order.shuffle(self.items)
        self.items.sort(key=lambda each: each.created_at or 0.0, reverse=True)

    async def list_sandboxes(self, metadata: dict[str, str], *, page: int, page_size: int) -> SandboxListing:
        assert metadata == TENANT
        self.pages_read += 1
        shown = self.items[(page - 1) * page_size : page * page_size]
        return SandboxListing(items=shown, has_next=len(self.items) > page * page_size)


class Store:
    async def get_sandbox(self, id: str) -> bytes | None:
        return None


def on(engine: Any) -> SandboxList:
    store: Any = Store()
    return SandboxList(store, engine, Telemetry(), secret=None)


@pytest.fixture(autouse=True, scope="module")
def small_pages() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(listing, "ENGINE_PAGE", PAGE)
        patch.setattr(listing, "LOOKED_AT", 3 * PAGE)
        yield


async def page_of(sandboxes: SandboxList, size: int, token: str | None) -> SandboxPage:
    return await sandboxes.page("alice", metadata={}, states=set(), page_size=size, page_token=token)


@given(
    moments=st.lists(st.integers(0, 4), max_size=40),
    size=st.integers(1, 12),
    seed=st.integers(),
    newcomers=st.booleans(),
)
async def test_pages_have_everything_once_newest_first_whatever_was_made_at_one_moment(
    moments: list[int], size: int, seed: int, newcomers: bool
) -> None:
    engine = Engine(moments, random.Random(seed))
    there = {info.id for info in engine.items}
    seen: list[SandboxInfo] = []
    token: str | None = None
    while True:
        page = await page_of(on(engine), size, token)
        by_id = {info.id: info for info in engine.items}
        seen += [by_id[item.sandbox_id] for item in page.items]
        token = page.next_page_token
        if token is None:
            break
        if newcomers:
            engine.make(9)
    ids = [info.id for info in seen]
    assert sorted(id for id in ids if id in there) == sorted(there)
    assert len(set(ids)) == len(ids)
    assert [info.created_at for info in seen] == sorted((info.created_at or 0.0 for info in seen), reverse=True)


async def test_an_engine_that_promises_another_page_for_ever_is_not_asked_for_ever() -> None:
    engine = Engine([], random.Random(0))

    async def promises(metadata: dict[str, str], *, page: int, page_size: int) -> SandboxListing:
        engine.pages_read += 1
        return SandboxListing(items=[], has_next=True)

    engine.list_sandboxes = promises  # type: ignore[method-assign]
    assert (await page_of(on(engine), 5, None)).next_page_token is None
    assert engine.pages_read == 1
