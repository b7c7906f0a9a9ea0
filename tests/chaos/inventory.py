"""What is left at the end: in the store's masters, and at the engine."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import redis

from tests.chaos.recorder import Recorder
from tests.chaos.stores import Store
from tests.faults.rig import ENGINE_KEY, Rig
from tests.simulation.history import Inventory, Kept, Living
from tests.support.redis_server import RedisServer

_CLAIM = re.compile(r"oncebox:\{\d+\}:claim:(.+)")
_LIST = re.compile(r"oncebox:\{\d+\}:(?:looks|active:.+)")
_CHORES = re.compile(r"oncebox:\{\d+\}:chores:.+")
_OUTPUTS = re.compile(r"oncebox:\{\d+\}:outputs:(?:times|sizes)")


async def taken(recorder: Recorder, store: Store, rig: Rig) -> Inventory:
    """All of it."""
    kept = [each for server in store.masters() for each in of_server(server)]
    return Inventory(at=recorder.now(), kept=tuple(kept), living=tuple(await _living(rig)))


def of_server(server: RedisServer) -> Iterator[Kept]:
    """Each thing that one server holds, and when it ends by itself."""
    with server.client() as client:
        seconds, _ = client.time()
        for name in sorted(client.scan_iter(count=1000)):
            left = client.pttl(name)
            if left != -2:
                yield from _of_key(client, name, None if left == -1 else left / 1000, seconds)


def _of_key(client: redis.Redis, name: str, ends: float | None, now: float) -> Iterator[Kept]:
    if found := _CLAIM.fullmatch(name):
        header = str(client.execute_command("GETRANGE", name, 0, 15))
        yield Kept(kind="claim", name=name, state=header.split(" ")[1], ends=ends, of=found[1])
    elif _LIST.fullmatch(name):
        members = client.zrange(name, 0, -1) if client.type(name) == "zset" else sorted(client.smembers(name))
        yield from (Kept(kind="list", name=name, of=str(member)) for member in members)
    elif name.startswith("oncebox:slots:") or _CHORES.fullmatch(name):
        # A list of chores is gone once all of it is done.
        kind: Literal["slot", "fence"] = "slot" if name.startswith("oncebox:slots:") else "fence"
        scored: Any = client.zrange(name, 0, -1, withscores=True)
        yield from (Kept(kind=kind, name=name, ends=at / 1000 - now, of=member) for member, at in scored)
    elif not _OUTPUTS.fullmatch(name):  # bounded by bytes, not by time
        yield Kept(kind="lease" if name.startswith("oncebox:lease:") else "key", name=name, ends=ends)


async def _living(rig: Rig) -> list[Living]:
    if rig._engine is None:
        return []
    found: list[Living] = []
    page = 1
    while True:
        url = f"{rig.engine.url}/v1/sandboxes?page={page}&pageSize=200"
        body = (await rig.caller.send("GET", url, headers={"OPEN-SANDBOX-API-KEY": ENGINE_KEY})).body
        found += (_lives(each["id"], each["metadata"]) for each in body["items"])
        if not body["pagination"]["hasNextPage"]:
            return found
        page += 1


def _lives(id: str, metadata: Mapping[str, str]) -> Living:
    request = " ".join(metadata.get(f"oncebox.io/{name}", "") for name in ("generation", "attempt"))
    return Living(sandbox=id, digest=metadata.get("oncebox.io/idem", ""), request=request)
