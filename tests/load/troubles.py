"""What happens to the stack while callers rely on it."""

import asyncio

from tests.load.recording import Journal
from tests.support.stack import Stack

KILL_AFTER, DEAD_FOR, ROLL_AFTER, REDIS_AFTER = 15.0, 6.0, 20.0, 20.0
"""Seconds, at full pace: after the ramp-up; for how long; after the one before."""
SETTLE = 1.5
"""Seconds after a part is back in which callers may still meet its absence."""


async def make(stack: Stack, journal: Journal, pace: float) -> None:
    """One replica is killed and started again, one is rolled, Redis is restarted: one after the other."""
    await asyncio.sleep(KILL_AFTER * pace)
    with journal.window("replica 1 killed"):
        await asyncio.to_thread(stack.replicas[0].kill)
        await asyncio.sleep(DEAD_FOR * pace)
        await stack.replicas[0].start()
        journal.note("replica 1 back")
        await asyncio.sleep(SETTLE)
    await asyncio.sleep(ROLL_AFTER * pace)
    with journal.window("replica 2 told to end"):
        code = await stack.replicas[1].roll()
        journal.note(f"replica 2 back (it ended with {code})")
        await asyncio.sleep(SETTLE)
    await asyncio.sleep(REDIS_AFTER * pace)
    with journal.window("Redis restarted"):
        await asyncio.to_thread(stack.redis.restart)
        await asyncio.sleep(SETTLE)


async def idle_connections(stack: Stack, journal: Journal, count: int) -> int:
    """Open connections that carry nothing after their first answer: how many of them the balancer dropped."""
    dropped = await asyncio.gather(*(_idle(stack.port) for _ in range(count)))
    journal.note(f"the balancer has dropped {sum(dropped)} idle connections")
    return sum(dropped)


async def _idle(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(40):
            while await reader.read(65_536):
                pass
        return True
    except (TimeoutError, OSError, asyncio.IncompleteReadError):
        return False
    finally:
        writer.close()
