"""Run worlds, judge them, and make a failing one small and readable."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator

import msgspec

from tests.simulation.checker import check
from tests.simulation.facts import Violation
from tests.simulation.history import AnyEvent, Call, Executed
from tests.simulation.plan import Plan
from tests.simulation.world import World, run

_json = msgspec.json.Encoder()


class Verdict(msgspec.Struct, frozen=True):
    """What came of one world."""

    plan: Plan
    history: list[AnyEvent]
    submissions: int
    violations: list[Violation]
    unexpected: list[str]
    """What should not have happened in the simulation itself, or was logged by nobody."""

    @property
    def failed(self) -> bool:
        """Anything is wrong."""
        return bool(self.violations or self.unexpected)

    @property
    def kinds(self) -> set[str]:
        """Which rules are broken."""
        return {violation.rule for violation in self.violations} | ({"unexpected"} if self.unexpected else set())


def judged(plan: Plan) -> Verdict:
    """Run a world and check its history."""
    logging.disable()
    try:
        world = run(plan)
    finally:
        logging.disable(logging.NOTSET)
    world.history.sort(key=lambda event: event.at)
    return Verdict(plan, world.history, world.submissions, check(world.history), _unexpected(world))


def _unexpected(world: World) -> list[str]:
    found = [f"{each['message']}: {each.get('exception')!r}" for each in world.loop.unexpected]
    return found + [f"{name} has not come to its end" for name in world.stuck]


def fingerprint(history: list[AnyEvent]) -> str:
    """A history's hash: equal for equal ones, byte for byte."""
    return hashlib.sha256(b"\n".join(map(_json.encode, history))).hexdigest()


def smaller(verdict: Verdict, judge: Callable[[Plan], Verdict] = judged) -> Verdict:
    """The same failure with fewer faults and callers: what can be left out, one by one, is."""
    wanted = verdict.kinds
    again = True
    while again:
        again = False
        for plan in _fewer(verdict.plan):
            tried = judge(plan)
            if tried.kinds & wanted:
                verdict, again = tried, True
                break
    return verdict


def _fewer(plan: Plan) -> Iterator[Plan]:
    for name in ("faults", "callers"):
        there = getattr(plan, name)
        for size in (len(there) // 2, 1):
            for start in range(0, len(there), size or 1):
                rest = there[:start] + there[start + max(size, 1) :]
                if len(rest) < len(there):
                    yield msgspec.structs.replace(plan, **{name: rest})
    for number, caller in enumerate(plan.callers):
        if caller.jobs > 1:
            few = msgspec.structs.replace(caller, jobs=caller.jobs // 2)
            yield msgspec.structs.replace(plan, callers=(*plan.callers[:number], few, *plan.callers[number + 1 :]))


def timeline(verdict: Verdict) -> Iterator[str]:
    """A world for people: what befell it, what was asked, answered and executed, and what is wrong."""
    for event in verdict.history:
        yield f"{event.at:10.4f}  {_line(event)}"
    yield ""
    yield f"plan: {_json.encode(verdict.plan).decode()}"
    for violation in verdict.violations:
        yield f"WRONG {violation.at:10.4f}  {violation.rule}: {violation.what}"
    for text in verdict.unexpected:
        yield f"UNEXPECTED  {text}"


def _line(event: AnyEvent) -> str:
    match event:
        case Call():
            told = f"{event.status or 'no answer'} {event.code}".strip()
            seen = "; ".join(f"{one.id} {one.state or ''} {one.exit_code} {one.reason or ''}" for one in event.seen)
            asked = event.mark or event.key or event.of
            return (
                f"{event.caller} -> {event.replica}: {event.what} {asked}, at {event.until:.4f}: {told} {seen}".rstrip()
            )
        case Executed():
            ended = "did not end" if event.until is None else f"ended at {event.until:.4f} with {event.exit_code}"
            return f"sandbox {event.sandbox[:8]} executes {event.mark} ({event.attempt[:8]}), {ended}"
    fields = ((name, getattr(event, name)) for name in event.__struct_fields__ if name != "at")
    shown = ", ".join(f"{name} {str(value)[:300]}" for name, value in fields if value not in ("", None))
    return f"-- {type(event).__name__}: {shown}"
