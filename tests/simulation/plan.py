"""What happens in a world: drawn from a seed, and made smaller piece by piece where it fails."""

from __future__ import annotations

import random

import msgspec

TENANTS = ("red", "blue")


class Fault(msgspec.Struct, frozen=True, array_like=True):
    """One trouble: when it begins, how long it lasts (seconds), whom of its kind it befalls; ``size``: from 0 to 1."""

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
    from tests.simulation.troubles import KINDS

    rng = random.Random(f"plan {seed}")
    seconds = rng.choice((15.0, 30.0, 60.0))
    callers = tuple(
        CallerPlan(number, rng.choice(TENANTS), rng.uniform(0, seconds / 6), rng.randint(2, 12), rng.getrandbits(32))
        for number in range(rng.randint(6, 20))
    )
    kinds = rng.sample(KINDS, rng.randint(1, 6))
    faults = tuple(
        Fault(at, rng.choice(kinds), rng.choice((0.5, 2.0, 8.0, 20.0)), rng.randrange(60), rng.random())
        for at in sorted(rng.uniform(2, seconds) for _ in range(rng.choice((0, 2, 5, 10, 20))))
    )
    return Plan(seed, rng.choice((2, 2, 3)), seconds, callers, faults)
