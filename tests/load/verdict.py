"""Whether a run passed, rule by rule, and the figures of its table."""

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.load.callers import Callers
from tests.load.plan import Job
from tests.load.recording import Exchange, Journal
from tests.load.sampling import Sampler
from tests.simulation import checker
from tests.simulation.history import AnyEvent, Executed

ENGINE_LIMIT = 170.0
"""Status reads, and output reads, a second at the engine, over all replicas and callers, of 500 jobs; of more, as many
more: each is looked at once in `ONCEBOX_ENGINE_INTERVAL`.
"""
SHOWN = 5


@dataclass(frozen=True)
class Check:
    """One rule: what was wanted, what was found."""

    rule: str
    passed: bool
    found: str


def checks(
    jobs: Sequence[Job], history: Sequence[AnyEvent], callers: Callers, journal: Journal, sampler: Sampler,
    ramped: float, ended: float, again: Sequence[str], dropped: tuple[int, int],
) -> list[Check]:  # fmt: skip
    """All rules."""
    wrong = [each for each in callers.outcomes if each.wrong and not each.hung]
    hung = [each for each in callers.outcomes if each.hung]
    ledger = Counter(event.mark for event in history if isinstance(event, Executed))
    runs = Counter(ledger[job.mark] for job in jobs)
    violations = checker.check(history)
    limit = ENGINE_LIMIT * callers.plan.scale
    strangers = set(ledger) - {job.mark for job in jobs}
    followed = {each.mark for each in callers.outcomes if not each.wrong}
    return [
        Check("every job ran exactly once", runs == {1: len(jobs)} and not strangers, _runs(runs, len(jobs))),
        Check(
            "every result right, byte for byte",
            not wrong and len(followed) == len(jobs),
            f"{len(callers.outcomes) - len(wrong) - len(hung)} of {len(callers.outcomes)} results of {len(jobs)} jobs"
            + "".join(f"; {each.mark} ({each.who}): {each.wrong}" for each in wrong[:SHOWN]),
        ),
        Check("no caller hung", not hung, f"{len(hung)} hung" + "".join(f"; {each.mark}" for each in hung[:SHOWN])),
        _engine("status reads at the engine", sampler, ("status",), ramped, ended, limit),
        _engine("output reads at the engine", sampler, ("outputs", "log"), ramped, ended, limit),
        _quiet(journal),
        Check("results outlive their sandboxes", not again, "; ".join(again[:SHOWN]) or "right byte for byte"),
        Check(
            "the history keeps every rule",
            not violations,
            f"{len(violations)} violations in {len(history)} events"
            + "".join(f"; {each.rule}: {each.what}" for each in violations[:SHOWN]),
        ),
        Check("the balancer drops idle connections", dropped[0] == dropped[1], f"{dropped[0]} of {dropped[1]} dropped"),
    ]


def _runs(runs: Counter[int], jobs: int) -> str:
    others = "".join(f", {count} ran {times} times" for times, count in sorted(runs.items()) if times != 1)
    return f"{runs[1]} of {jobs} ran once{others}"


def _engine(rule: str, sampler: Sampler, kinds: tuple[str, ...], ramped: float, ended: float, limit: float) -> Check:
    """The highest rate over ten seconds that began after the ramp-up."""
    rates = [rate for at, rate in sampler.rates(*kinds) if ramped + 10 <= at <= ended]
    if not rates:
        return Check(rule, True, "too short a run to say")
    worst, mean = max(rates), statistics.fmean(rates)
    return Check(f"{rule} <= {limit:.0f}/s", worst <= limit, f"mean {mean:.0f}/s, worst 10 s {worst:.0f}/s")


def _quiet(journal: Journal) -> Check:
    bad = [each for each in journal.exchanges if each.who == "quiet" and each.status >= 500]
    asked = sum(each.who == "quiet" for each in journal.exchanges)
    broken = sum(each.who == "quiet" and each.status == 0 for each in journal.exchanges)
    found = f"{len(bad)} of {asked} requests; {broken} connections broken" + "".join(map(shown, bad[:SHOWN]))
    return Check("quiet callers got no 5xx", not bad, found)


def shown(each: Exchange) -> str:
    """An exchange, for the eye."""
    return f"; {each.status} after {each.seconds:.1f} s at {each.at:.0f} s: {each.detail[:80]!r}"


def quantiles(values: Iterable[float]) -> tuple[int, float, float, float]:
    """How many, and their median, 99th percentile and largest."""
    ordered = sorted(values)
    if not ordered:
        return 0, 0.0, 0.0, 0.0
    return len(ordered), ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)], ordered[-1]


def latencies(journal: Journal, callers: Callers) -> list[tuple[str, int, float, float, float]]:
    """Name, count, median, p99 and largest, in seconds, of what callers wait for."""
    rows = []
    for kind in ("create", "submit", "poll", "delete"):
        found = [each.seconds for each in journal.exchanges if each.kind == kind and 200 <= each.status < 300]
        rows.append((kind, *quantiles(found)))
    ends = [each.after for each in callers.outcomes if each.after is not None]
    rows.append(("end of the command to the caller's result", *quantiles(ends)))
    return rows
