"""The adapter as a whole."""

import asyncio

from service.ports.store import Store
from service.store import open_store


def test_it_is_a_store_and_needs_no_event_loop_to_be_made() -> None:
    store: Store = open_store("memory://", retention=1.0, record_output=1)
    asyncio.run(store.close())


async def test_each_store_in_the_process_is_one_of_its_own() -> None:
    one, two = (open_store("memory://", retention=9.0, record_output=9) for _ in range(2))
    await one.remember("name", b"value", ttl=9.0)
    assert await two.recall("name") is None
    health = await one.health()
    assert (health.maxmemory_policy, health.persistence) == (None, None)
    await one.close()
    await two.close()


async def test_replicas_are_not_waited_for_in_the_process() -> None:
    store = open_store("memory://", retention=9.0, record_output=9, claim_replicas=2)
    done, _, _ = await store.claim("cmd_a", token="t", owner="o", lease=9.0, body=b"")
    assert done
    await store.close()
