"""How far the topology carries, simulated: `python -m tests.bench.scale [SANDBOXES REPLICAS REDIS ENGINES]...`.

A discrete simulation of following, which is what grows with the number of sandboxes: every job has a next look, looks
wait for a free core of a replica, then for Redis and for the engine, each of which serves one thing at a time at the
pace that was measured (docs/bench.json where it is there). Submissions and polls take their share of the same cores.
What comes out: how busy each part is, and how late looks are. A part that is busier than it can be makes looks late
without end, so the first one to get there is where it breaks.

Left out: the network, the sandboxes' own work, garbage, and everything that goes wrong. Read it as an upper bound.
"""

import heapq
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.bench import results

INTERVAL, QUICKEST, JOBS_AT_INTERVAL = 3.0, 0.5, 500
"""The pace of looks (`service.core.jobs.poller`)."""
SECONDS = 20.0
WARM_UP = 5.0
LATE = 1.0
"""Seconds of lateness at the 99th percentile from which on a part counts as overrun."""


@dataclass(frozen=True)
class Costs:
    """Seconds of one core, by kind of work and by part."""

    look_replica: float = 0.0015
    look_redis: float = 0.00012
    look_engine: float = 0.00028
    submit_replica: float = 0.0088
    submit_redis: float = 0.0006
    submit_engine: float = 0.0025
    poll_replica: float = 0.0006
    poll_redis: float = 0.00003

    @staticmethod
    def measured() -> "Costs":
        """From the figures of the last `make bench`, else the defaults (of the machine that this was written on)."""
        watched = results.load().get("following", {}).get("watched", {})
        if not watched:
            return Costs()
        micro = {part: watched[f"{part}_us_a_look"] / 1e6 for part in ("replica", "redis", "engine")}
        return Costs(look_replica=micro["replica"], look_redis=micro["redis"], look_engine=micro["engine"])


@dataclass(frozen=True)
class Shape:
    """A deployment, and what its callers do: each sandbox runs one job after another, and its caller waits for it."""

    sandboxes: int
    replicas: int
    redis: int = 1
    engines: int = 1
    job_seconds: float = 300.0
    polls_a_job: float = 1 / 10
    """Polls a second for each running job: a long poll lasts 30 s, and ends early where there is news."""

    @property
    def pace(self) -> float:
        """Seconds between two looks at a job."""
        return min(INTERVAL, max(QUICKEST, INTERVAL * self.sandboxes / JOBS_AT_INTERVAL))


@dataclass
class Part:
    """Cores that serve in order of arrival."""

    cores: int
    background: float
    """The share of each core that other work takes."""
    free: list[float] = field(default_factory=list)
    busy: float = 0.0

    def __post_init__(self) -> None:
        self.free = [0.0] * self.cores

    def serve(self, at: float, cost: float) -> float:
        """When work that comes at `at` is done."""
        cost /= max(0.02, 1.0 - self.background)
        begin = max(at, heapq.heappop(self.free))
        heapq.heappush(self.free, begin + cost)
        self.busy += cost
        return begin + cost


@dataclass(frozen=True)
class Outcome:
    """What became of a shape. Shares are of all cores of a part, other work included; above 1: overrun."""

    shape: Shape
    looks_per_second: float
    shares: dict[str, float]
    late_p99: float

    @property
    def breaks_at(self) -> str:
        """The busiest part, where looks are late; else nothing."""
        worst = max(self.shares, key=lambda name: self.shares[name])
        return worst if self.late_p99 > LATE or self.shares[worst] >= 1 else ""


def simulate(shape: Shape, costs: Costs, *, seed: int = 1) -> Outcome:
    """Looks for some seconds."""
    chance = random.Random(seed)
    submits, polls = shape.sandboxes / shape.job_seconds, shape.sandboxes * shape.polls_a_job
    other = {
        "replicas": (submits * costs.submit_replica + polls * costs.poll_replica) / shape.replicas,
        "redis": (submits * costs.submit_redis + polls * costs.poll_redis) / shape.redis,
        "engine": submits * costs.submit_engine / shape.engines,
    }
    counts = {"replicas": shape.replicas, "redis": shape.redis, "engine": shape.engines}
    parts = {name: Part(count, other[name]) for name, count in counts.items()}
    due = [chance.uniform(0, shape.pace) for _ in range(shape.sandboxes)]
    heapq.heapify(due)
    late: list[float] = []
    looks = 0
    while due[0] < SECONDS:
        at = heapq.heappop(due)
        done = parts["replicas"].serve(at, costs.look_replica)
        done = parts["redis"].serve(done, costs.look_redis)
        done = parts["engine"].serve(done, costs.look_engine)
        looks += 1
        if at > WARM_UP:
            late.append(done - at)
        # The next look is due a pace after the last one was made.
        heapq.heappush(due, max(at + shape.pace, done))
    late.sort()
    shares = {name: max(part.busy / SECONDS / part.cores, 0.0) + other[name] for name, part in parts.items()}
    wanted = {
        name: shape.sandboxes / shape.pace * cost / counts[name] + other[name]
        for name, cost in zip(parts, (costs.look_replica, costs.look_redis, costs.look_engine), strict=True)
    }
    shares = {name: max(shares[name] if shares[name] < 1 else 1.0, wanted[name]) for name in shares}
    return Outcome(shape, looks / SECONDS, shares, late[int(len(late) * 0.99)] if late else 0.0)


SHAPES = (
    Shape(500, 1),
    Shape(500, 3),
    Shape(1_000, 3),
    Shape(2_000, 3),
    Shape(2_000, 6, engines=2),
    Shape(5_000, 6, engines=3),
    Shape(10_000, 12, redis=1, engines=6),
    Shape(20_000, 24, redis=3, engines=12),
    Shape(50_000, 60, redis=6, engines=30),
)


def table(outcomes: Sequence[Outcome]) -> list[str]:
    """As lines of Markdown."""
    lines = [
        "| sandboxes | replicas | Redis | engines | looks/s | replicas | Redis | engines | late (p99) | breaks at |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for each in outcomes:
        shape, shares = each.shape, each.shares
        lines.append(
            f"| {shape.sandboxes:,} | {shape.replicas} | {shape.redis} | {shape.engines} "
            f"| {each.looks_per_second:,.0f} "
            f"| {shares['replicas']:.0%} | {shares['redis']:.0%} | {shares['engine']:.0%} | {each.late_p99:.2f} s "
            f"| {each.breaks_at or '-'} |"
        )
    return lines


def main() -> None:
    numbers = [int(word) for word in sys.argv[1:]]
    shapes = [Shape(*numbers[at : at + 4]) for at in range(0, len(numbers), 4)] or SHAPES
    costs = Costs.measured()
    print(f"{costs}\n")
    print("\n".join(table([simulate(shape, costs) for shape in shapes])))


if __name__ == "__main__":
    main()
