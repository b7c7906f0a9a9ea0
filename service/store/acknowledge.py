"""Writes that Redis replicas acknowledge: a script and a ``WAIT`` behind it, on one connection.

``WAIT`` counts for the writes of its own connection alone.
"""

from typing import Any

from redis.asyncio import Redis, RedisCluster
from redis.exceptions import AskError, NoScriptError

from service.errors import StoreUnavailable
from service.store.scripts import Args, ScriptCall

ACKNOWLEDGE_SECONDS = 1.0
"""Seconds that the replicas get."""


async def acknowledged(client: Redis | RedisCluster, call: ScriptCall, replicas: int) -> Any:
    """The script's answer. Raises ``StoreUnavailable`` where too few replicas acknowledged it."""
    wait: Args = ("WAIT", replicas, int(ACKNOWLEDGE_SECONDS * 1000))
    answer, count = await _together(client, call.keys[0], call.by_sha(), wait)
    if isinstance(answer, NoScriptError):
        answer, count = await _together(client, call.keys[0], call.by_text(), wait)
    for reply in (answer, count):
        if isinstance(reply, Exception):
            raise reply
    if count < replicas:
        raise StoreUnavailable(f"{count} of {replicas} Redis replicas acknowledged the claim.", retry_after=1)
    return answer


async def _together(client: Redis | RedisCluster, key: str, first: Args, second: Args) -> tuple[Any, Any]:
    if isinstance(client, RedisCluster):
        return await _together_on_node(client, key, first, second)
    pipeline = client.pipeline(transaction=False)
    pipeline.execute_command(*first)
    pipeline.execute_command(*second)
    one, two = await pipeline.execute(raise_on_error=False)
    return one, two


async def _together_on_node(client: RedisCluster, key: str, first: Args, second: Args) -> tuple[Any, Any]:
    """On the node that has the key. Redirections are not followed one by one: both must go to one node."""
    one: Any = None
    two: Any = None
    for _ in range(2):
        # Follows a redirection, so that the map is right.
        await client.execute_command("EXISTS", key)
        node = client.get_node_from_key(key)
        pipeline = client.pipeline()
        for args in (first, second):
            pipeline.execute_command(*args, target_nodes=node)
        one, two = await pipeline.execute(raise_on_error=False, allow_redirections=False)
        if not isinstance(one, AskError):
            break
    return one, two
