"""Messages of changed claims, over one subscription of its own."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import suppress

from redis.asyncio.client import PubSub

from service.store import keys
from service.store.redis_client import RedisClient
from service.store.trouble import CAUGHT
from service.store.urls import close

PING_EVERY = 3.0
"""Seconds of silence after which the server is asked whether it is there."""
SILENCE = 7.0
"""Seconds of silence after which the connection is taken for dead."""
BACKOFF = (0.1, 2.0)
"""Seconds before the first and the later tries to connect again."""


async def changes(redis: RedisClient) -> AsyncIterator[str | None]:
    """Ids of claims as they change; None after each (re)subscription. Ends when it is closed or cancelled."""
    pause = BACKOFF[0]
    while True:
        client = redis.server.subscriber(redis.client)
        subscription = client.pubsub()
        try:
            async for id in _subscribed(subscription):
                pause = BACKOFF[0]
                yield id
        except CAUGHT:
            await asyncio.sleep(random.uniform(pause / 2, pause))
            pause = min(2 * pause, BACKOFF[1])
        finally:
            with suppress(*CAUGHT):
                await subscription.aclose()
            with suppress(*CAUGHT):
                await close(client)


async def _subscribed(subscription: PubSub) -> AsyncIterator[str | None]:
    """One subscription, until it breaks."""
    clock = asyncio.get_running_loop().time
    await subscription.subscribe(keys.CHANGES)
    heard = clock()
    while True:
        message = await subscription.get_message(timeout=PING_EVERY)
        if message is None:
            if clock() - heard > SILENCE:
                raise TimeoutError("the subscription is silent")
            await subscription.ping()
            continue
        heard = clock()
        if message["type"] == "subscribe":
            yield None
        elif message["type"] == "message":
            yield message["data"].decode(errors="replace")  # of what others say there
