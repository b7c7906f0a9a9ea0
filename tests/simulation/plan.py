"""What happens in a world: drawn from a seed, and made smaller piece by piece where it fails."""

from __future__ import annotations

import random

import msgspec

KINDS = ("kill", "freeze", "redis_restart", "redis_flush", "weather", "kill_at_step", "redis_cut")


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """One trouble: when it begins, how long it lasts (seconds), to whom; ``size`` is between 0 and 1."""

    at: float
    kind: str
    lasts: float
    who: int
    size: float


class CallerPlan(msgspec.Struct, frozen=True, array_like=True):
    """One caller: whose it is, when it begins, how many jobs it runs, and how it behaves."""

    number: int
    tenant: str
    at: float
    jobs: int
    seed: int


class Plan(msgspec.Struct, frozen=True):
    """A whole world."""

    seed: int
    replicas: int
    seconds: float
    """Of trouble; the quiet comes after."""
    callers: tuple[CallerPlan, ...]
    faults: tuple[Fault, ...]


def plan_of(seed: int) -> Plan:
    """The world of a seed."""
    rng = random.Random(f"plan {seed}")
    replicas = rng.choice((2, 2, 3))
    seconds = rng.choice((20.0, 40.0))
    callers = tuple(
        CallerPlan(
            number, rng.choice(("red", "blue")), rng.uniform(0, seconds / 2), rng.randint(2, 8), rng.getrandbits(32)
        )
        for number in range(rng.randint(4, 12))
    )
    kinds = rng.sample(KINDS, rng.randint(1, 4))
    faults = tuple(
        Fault(at, rng.choice(kinds), rng.choice((0.5, 2.0, 8.0, 20.0)), rng.randrange(replicas), rng.random())
        for at in sorted(rng.uniform(1, seconds) for _ in range(rng.randint(0, 12)))
    )
    return Plan(seed, replicas, seconds, callers, faults)
