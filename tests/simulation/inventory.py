"""What a Redis holds, thing by thing, by the names that the product gives."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.simulation.history import Kept
from tests.simulation.redis import Redis, Sorted

_CLAIM = re.compile(r"oncebox:\{\d+\}:claim:(.+)")
_LIST = re.compile(r"oncebox:\{\d+\}:(?:looks|active:.+)")
_CHORES = re.compile(r"oncebox:\{\d+\}:chores:.+")
_SLOTS = re.compile(r"oncebox:slots:(.+)")

CHORE_DONE = 1200.0
"""Seconds within which a chore that is due is done, and off its list."""


def kept(redis: Redis) -> Iterator[Kept]:
    """Each thing that is there, and when it ends by itself."""
    for key in sorted(redis.names()):
        name = key.decode()
        left = redis.execute([b"PTTL", key])
        ends = None if left < 0 else left / 1000
        value = redis.value(key)
        if (found := _CLAIM.fullmatch(name)) and isinstance(value, bytes):
            state = value.split(b" ")[1].decode()
            yield Kept(kind="claim", name=name, state=state, ends=ends, of=found[1])
        elif _LIST.fullmatch(name) and isinstance(value, Sorted | dict):
            members = value.scores if isinstance(value, Sorted) else value
            for member in members:
                yield Kept(kind="list", name=name, of=member.decode())
        elif (found := _SLOTS.fullmatch(name)) and isinstance(value, Sorted):
            for member, until in value.scores.items():
                yield Kept(kind="slot", name=name, ends=until / 1000 - redis.now() / 1000, of=member.decode())
        elif _CHORES.fullmatch(name) and isinstance(value, Sorted):
            for member, due in value.scores.items():
                until = max(0.0, due - redis.now()) / 1000 + CHORE_DONE
                yield Kept(kind="key", name=name, ends=until, of=member.decode())
        elif name.startswith("oncebox:lease:"):
            yield Kept(kind="lease", name=name, ends=ends)
        else:
            yield Kept(kind="key", name=name, ends=ends)
