"""What is found out about a submission: decided by its fence and the living, and said without a write."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from service.core.fence.protocol import NOTHING_RAN, Boot, Voided
from service.core.jobs.decisions import Change, Decision, NextAttempt
from service.core.jobs.reconcile import CONFIRM_POLLS, Reconciler
from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.messages import SandboxState
from service.ports.engine import CommandMissing, SandboxMissing
from tests.unit.core.jobs.scene import (
    BODY,
    DAMAGED,
    EMPTY,
    OTHER_VOID,
    OURS,
    SILENT,
    THEIRS,
    TOKEN,
    VOID,
    Scene,
    body,
    look,
    record,
    status,
)  # fmt: skip

ACCEPTED, UNKNOWN, RUNNING, CLOSED = ClaimState.ACCEPTED, ClaimState.UNKNOWN, ClaimState.RUNNING, ClaimState.CLOSED
GONE = SandboxMissing("no such sandbox")
MARKER = f"oncebox-fence {TOKEN} none\n".encode()


def reconciler(scene: Any) -> Reconciler:
    return Reconciler(scene, scene, scene)


def said(decision: Decision | JobBody) -> str:
    """A decision in a few words."""
    if isinstance(decision, JobBody):
        return "the run" if decision.log is None else f"the run, whose output is {decision.log}"
    if isinstance(decision, NextAttempt):
        return "the next attempt"
    found = decision.body
    words = [decision.state.value, found.state and found.state.value, found.reason and found.reason.value]
    words += [f"follow {found.engine_id}" if found.engine_id != "ours" else None, decision.settled]
    words += ["again" if found.quiet_polls else None, "doubtful" if found.doubtful else None]
    return " ".join(word for word in words if word) + ("" if decision.notify else ", quietly")


def over(code: int, printed: bytes = b"", **more: Any) -> Scene:
    return Scene(status_=status(code=code), output=printed, **more)


CONFIRMED: dict[str, tuple[Scene, JobBody, str]] = {
    "the fence names its output": (Scene(fence=OURS), BODY, "the run, whose output is /tmp/ours.output"),
    "the fence names another's": (
        Scene(fence=THEIRS, status_=CommandMissing("no")), BODY, "running follow theirs adopted",
    ),
    "a void of this mark": (Scene(fence=VOID), BODY, "the next attempt"),
    "a void of another mark, and it runs": (
        Scene(fence=OTHER_VOID, status_=status(running=True)), BODY, "accepted again, quietly",
    ),
    "no fence yet, and it runs": (Scene(status_=status(running=True)), BODY, "accepted again, quietly"),
    "no fence yet, and execd does not know it yet": (
        Scene(status_=CommandMissing("no")), BODY, "accepted again, quietly",
    ),
    "no fence for long, and it runs": (Scene(status_=status(running=True)), body(quiet_polls=CONFIRM_POLLS), "the run"),
    "a damaged fence, and it runs": (Scene(fence=DAMAGED, status_=status(running=True)), BODY, "the run"),
    "no fence, and it is over": (over(3, b"said\n"), BODY, "the run"),
    "no fence, over, and said that none could be made": (
        over(NOTHING_RAN, MARKER, voided=Voided("voided")), BODY, "voided no_fence",
    ),
    "the same, and still none can be made": (
        over(NOTHING_RAN, MARKER, voided=Voided("error")), BODY, "refused no_fence",
    ),
    "the same, and another copy runs": (
        Scene(
            status_=status(code=NOTHING_RAN, content="another's"), output=MARKER, voided=Voided("run", fence=THEIRS),
        ),
        BODY, "running follow theirs adopted",
    ),
    "a marker among other words, and it lives": (
        over(0, b"x" + MARKER, seen=look(alive=True)), BODY, "running follow None adopted",
    ),
    "a marker among other words, and nothing lives": (
        over(0, b"x" + MARKER, seen=look()), BODY, "unknown still_unknown again doubtful",
    ),
    "a marker, and its fence is there by now": (over(0, b"x" + MARKER, seen=look(OURS)), BODY, "running"),
    "no fence was asked for": (Scene(), body(fenced=False, boot=None), "the run"),
    "the sandbox is gone": (Scene(fence=GONE), BODY, "closed lost sandbox_gone"),
    "the sandbox is silent": (Scene(fence=SILENT), BODY, "accepted again, quietly"),
    "the sandbox is silent, and the engine knows why": (
        Scene(fence=SILENT, sandbox=SandboxState.TERMINATED), BODY, "closed lost sandbox_gone",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIRMED)
async def test_whether_a_command_that_was_accepted_is_the_run(case: str) -> None:
    scene, what, decided = CONFIRMED[case]
    scene = msgspec.structs.replace(scene, asked=[])
    assert said(await reconciler(scene).confirm(record(ACCEPTED, what), what)) == decided


async def test_what_a_command_printed_is_not_asked_for_where_its_fence_names_it() -> None:
    scene = Scene(fence=OURS, output=MARKER)
    await reconciler(scene).confirm(record(ACCEPTED), BODY)
    assert scene.asked == ["fence"]


SETTLED: dict[str, tuple[Scene, JobBody, float, bool, str]] = {
    "a void was made": (Scene(voided=Voided("voided")), BODY, 1001, False, "voided never_started voided"),
    "a void was made, and it is to be cancelled": (
        Scene(voided=Voided("voided")), BODY, 1001, True, "closed cancelled cancelled_before_start voided",
    ),
    "it runs": (
        Scene(voided=Voided("run", fence=THEIRS), status_=status(running=True)), BODY, 1001, False,
        "running follow theirs adopted",
    ),
    "an empty fence, and it lives": (
        Scene(voided=Voided("run", fence=EMPTY), seen=look(EMPTY, alive=True)), BODY, 1001, False,
        "unknown again, quietly",
    ),
    "an empty fence, and nobody can tell": (
        Scene(voided=Voided("run", fence=EMPTY), seen=look(EMPTY, alive=None)), BODY, 1001, False,
        "unknown again, quietly",
    ),
    "an empty fence, and nothing lives": (
        Scene(voided=Voided("run", fence=EMPTY), seen=look(EMPTY)), BODY, 1001, False,
        "closed lost start_not_confirmed lost",
    ),
    "an empty fence that is full by now": (
        Scene(voided=Voided("run", fence=EMPTY), seen=look(THEIRS), status_=CommandMissing("no")), BODY, 1001, False,
        "running follow theirs adopted",
    ),
    "another container": (
        Scene(voided=Voided("boot", Boot("a 8", 8), 8), seen=look(start=8)), BODY, 1001, False,
        "closed lost container_restarted lost",
    ),
    "another mark in the same container": (
        Scene(voided=Voided("boot", Boot("b 7", 7), 7), seen=look()), BODY, 1001, False,
        "unknown still_unknown again, quietly",
    ),
    "another mark in the same container, after the deadline and a grace": (
        Scene(voided=Voided("boot", Boot("b 7", 7), 7), seen=look()), BODY, 1161, False,
        "closed lost fence_wiped lost",
    ),
    "another mark, and it lives": (
        Scene(voided=Voided("boot", Boot("b 7", 7), 7), seen=look(alive=True)), BODY, 1001, False,
        "running follow None adopted",
    ),
    "the void did not get to its end": (
        Scene(voided=Voided("error")), BODY, 1001, False, "unknown still_unknown again, quietly",
    ),
    "the sandbox is gone": (Scene(voided=GONE), BODY, 1001, False, "closed lost sandbox_gone"),
    "the sandbox is silent": (Scene(voided=SILENT), BODY, 1001, False, "unknown again, quietly"),
    "no mark could be made, and the sandbox runs": (Scene(), body(boot=None), 1001, False, "unknown again, quietly"),
    "no mark could be made, and the sandbox ended": (
        Scene(sandbox=SandboxState.TERMINATED), body(boot=None), 1001, False, "closed lost sandbox_gone",
    ),
    "doubtful, and its fence is there": (Scene(seen=look(OURS)), body(doubtful=True), 1001, False, "running"),
    "doubtful, and the sandbox is silent": (
        Scene(), body(doubtful=True), 1001, False, "unknown again doubtful, quietly",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SETTLED)
async def test_what_became_of_a_submission_whose_answer_was_lost(case: str) -> None:
    scene, what, now, cancel, decided = SETTLED[case]
    scene = msgspec.structs.replace(scene, asked=[])
    decision = await reconciler(scene).settle(record(UNKNOWN, what, now=now, cancel=cancel), what)
    assert said(decision) == decided


async def test_a_doubtful_command_is_never_voided_anew() -> None:
    scene = Scene(seen=look())
    await reconciler(scene).settle(record(UNKNOWN), body(doubtful=True))
    assert "void" not in scene.asked, "a job may have removed its own fence, and ran all the same"


async def test_execd_s_word_on_an_adopted_run_counts_only_where_its_text_holds_the_token() -> None:
    for content, by_fence in ((TOKEN, False), ("another command", True)):
        scene = Scene(voided=Voided("run", fence=THEIRS), status_=status(running=True, content=content))
        change = await reconciler(scene).settle(record(UNKNOWN), BODY)
        assert isinstance(change, Change)
        assert change.body.by_fence is by_fence
        assert (change.body.fingerprint, change.body.timeout) == ("g", 9), "those of the request that runs"


@pytest.mark.parametrize(("started", "known"), [(999.0, False), (1000.5, True)])
async def test_a_run_that_began_before_the_submission_is_another_s(started: float, known: bool) -> None:
    scene = Scene(voided=Voided("run", fence=THEIRS), status_=status(running=True, started_at=started))
    change = await reconciler(scene).settle(record(UNKNOWN), BODY)
    assert isinstance(change, Change)
    assert (change.body.submitted_at is not None) is known
