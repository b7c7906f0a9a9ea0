"""How a job stands is said as what is to be written of it: its state is read before its output, and a cancel first."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from service.core.fence.protocol import Fence
from service.core.jobs import observe
from service.core.jobs.decisions import Change
from service.core.jobs.observe import Observer
from service.core.jobs.outcome import SIGKILL
from service.core.jobs.output import CHUNK
from service.core.jobs.reconcile import Reconciler
from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.messages import SandboxState
from service.ports.engine import CommandMissing, CommandNotRunning, FileMissing, SandboxMissing
from service.ports.store import Appended, Record
from tests.unit.core.jobs.scene import BODY, OURS, SILENT, Scene, body, look, record, status

ACCEPTED, RUNNING, ENDED = ClaimState.ACCEPTED, ClaimState.RUNNING, ClaimState.ENDED
CONFIRMED = body(log="/tmp/ours.output")
FORGOTTEN = body(log="/tmp/ours.output", by_fence=True)
KEEP = 100
GONE, NOT_KNOWN = SandboxMissing("no such sandbox"), CommandMissing("no such command")
EXITED = Fence(kind="run", fingerprint="f", log="/tmp/ours.output", exit_code=3)
KILLED = status(code=-1, signal=SIGKILL, finished_at=1100.5)


def observer(scene: Any, keep: int = KEEP) -> Observer:
    return Observer(scene, scene, Reconciler(scene, scene, scene), scene, scene, keep=keep)


async def observed(scene: Scene, seen: Record, **more: Any) -> Change:
    decision = await observer(scene).observe(seen, **more)
    assert isinstance(decision, Change)
    return decision


def said(change: Change) -> str:
    """A change in a few words."""
    found = change.body
    words = [change.state.value, found.state and found.state.value, found.reason and found.reason.value]
    words += [f"exit {found.exit_code}" if found.exit_code is not None else None]
    words += [f"+{len(change.append.data)} bytes" if change.append else None]
    words += ["interrupted" if found.interrupted else None, "troubled" if found.troubled_since else None]
    words += ["by fence" if found.by_fence else None, "complete" if found.output_complete else None]
    return " ".join(word for word in words if word) + ("" if change.notify else ", quietly")


def runs(**more: Any) -> Scene:
    return Scene(status_=status(running=True), **more)


def case(
    scene: Scene,
    decided: str,
    what: JobBody = CONFIRMED,
    state: ClaimState = RUNNING,
    *,
    now: float = 1001,
    **more: Any,
) -> tuple[Scene, Record, str]:
    return scene, record(state, what, now=now, **more), decided


JOBS = {
    "it runs, and printed": case(runs(output=b"said\n"), "running +5 bytes"),
    "it runs, and is confirmed by this": case(runs(fence=OURS), "running", BODY, ACCEPTED),
    "it runs, and has nothing new": case(runs(), "running, quietly"),
    "it ended": case(Scene(status_=status(code=3), output=b"said\n"), "closed exited exit 3 +5 bytes complete"),
    "it ended, and its output can't be read": case(Scene(status_=status(code=3), output=SILENT), "ended exited exit 3"),
    "it ended, and the command removed its output": case(
        Scene(status_=status(code=3), output=FileMissing("no")), "closed exited exit 3",
    ),
    "it ended a while ago, and its output can't be read": case(
        Scene(output=SILENT), "closed exited exit 3",
        body(log="/tmp/x.output", state="exited", exit_code=3, ended_at=1000.0), ENDED, now=1061,
    ),
    "it ended before, and its output can be read by now": case(
        Scene(output=b"said\n"), "closed exited exit 3 +5 bytes complete",
        body(log="/tmp/x.output", state="exited", exit_code=3, ended_at=1000.0), ENDED,
    ),
    "it is to be cancelled": case(runs(), "running interrupted, quietly", cancel=True),
    "it is to be cancelled, and was over": case(
        Scene(status_=status(), interrupted=CommandNotRunning("over")), "closed exited exit 0 complete", cancel=True,
    ),
    "it was cancelled": case(
        Scene(status_=status(code=143)), "closed cancelled exit 143 interrupted complete",
        body(log="/tmp/ours.output", interrupted=True), cancel=True,
    ),
    "it is to be cancelled, and then its state is not told": case(
        Scene(), "running interrupted troubled, quietly", cancel=True,
    ),
    "killed at its timeout": case(Scene(status_=KILLED, fence=OURS), "closed timed_out exit 137 complete", now=1101),
    "killed at its timeout, and its fence has an exit code": case(
        Scene(status_=KILLED, fence=EXITED), "closed exited exit 137 complete", now=1101,
    ),
    "execd does not know it yet": case(Scene(status_=NOT_KNOWN), "running, quietly"),
    "execd forgot it, and it lives": case(
        Scene(status_=NOT_KNOWN, seen=look(OURS, alive=True)), "running by fence, quietly", now=1006,
    ),
    "execd forgot it, and its fence has its exit code": case(
        Scene(status_=NOT_KNOWN, seen=look(EXITED)), "closed exited exit 3 by fence complete", now=1006,
    ),
    "execd forgot it, and nothing lives": case(
        Scene(seen=look(OURS)), "closed lost execd_restarted by fence complete", FORGOTTEN,
    ),
    "another container": case(
        Scene(seen=look(OURS, start=8)), "closed lost container_restarted by fence complete", FORGOTTEN,
    ),
    "nobody can tell whether it lives": case(
        Scene(seen=look(OURS, alive=None)), "running by fence, quietly", FORGOTTEN, now=1160,
    ),
    "nobody could tell until the deadline and a grace": case(
        Scene(seen=look(OURS, alive=None)), "closed lost execd_restarted by fence complete", FORGOTTEN, now=1161,
    ),
    "it lives past its timeout, which nobody else enforces": case(
        Scene(seen=look(OURS, alive=True)), "closed timed_out exit 137 by fence complete", FORGOTTEN, now=1101,
    ),
    "it lives and is to be cancelled": case(
        Scene(seen=look(OURS, alive=True)), "closed cancelled exit 137 by fence complete", FORGOTTEN, cancel=True,
    ),
    "it lives, is to be cancelled, and can't be ended": case(
        Scene(seen=look(OURS, alive=True), ended="error"), "running by fence, quietly", FORGOTTEN, cancel=True,
    ),
    "no fence, and execd forgot it": case(
        Scene(status_=NOT_KNOWN), "closed lost execd_restarted complete", body(fenced=False, boot=None), now=1006,
    ),
    "over, and it may have run nothing": case(
        Scene(status_=status(code=113), seen=look(OURS)), "running", BODY,
    ),
    "the sandbox is gone": case(Scene(status_=GONE), "closed lost sandbox_gone"),
    "the sandbox is silent": case(Scene(), "running troubled, quietly"),
    "the sandbox is silent since long, past the deadline": case(
        Scene(), "closed lost engine_unreachable troubled", body(log="/tmp/x.output", troubled_since=1100.0), now=1161,
    ),
    "the sandbox is silent only since now, past the deadline": case(Scene(), "running troubled, quietly", now=1161),
    "the sandbox is paused, past the deadline": case(
        Scene(sandbox=SandboxState.PAUSED), "running troubled, quietly",
        body(log="/tmp/x.output", troubled_since=1000.0), now=1161,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
async def test_what_is_to_be_written_of_a_job(name: str) -> None:
    scene, seen, decided = JOBS[name]
    assert said(await observed(msgspec.structs.replace(scene, asked=[]), seen)) == decided


EXEC = body(kind="exec", log="/tmp/ours.stdout")
EXECS = {
    "it runs": case(runs(), "running, quietly", EXEC),
    "it ended": case(Scene(status_=status(code=3), output=b"out"), "closed exited exit 3 complete", EXEC),
    "it ended, and a file can't be read": case(
        Scene(status_=status(code=3), stderr=SILENT), "ended exited exit 3", EXEC,
    ),
    "it ended, and a file was removed": case(
        Scene(status_=status(code=3), stderr=FileMissing("no")), "closed exited exit 3", EXEC,
    ),
    "it ended a while ago, and a file can't be read": case(
        Scene(stderr=SILENT), "closed exited",
        body(kind="exec", log="/tmp/ours.stdout", state="exited", ended_at=1000.0), ENDED, now=1061,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EXECS)
async def test_what_is_to_be_written_of_an_exec(name: str) -> None:
    scene, seen, decided = EXECS[name]
    assert said(await observed(msgspec.structs.replace(scene, asked=[]), seen)) == decided


async def test_a_cancel_comes_before_the_state_and_the_state_before_the_output() -> None:
    scene = Scene(status_=status(code=143), output=b"bye")
    await observed(scene, record(RUNNING, CONFIRMED, cancel=True))
    assert scene.asked == ["interrupt", "status", "file"]


async def test_a_command_is_interrupted_once() -> None:
    scene = runs()
    await observed(scene, record(RUNNING, body(log="/tmp/ours.output", interrupted=True), cancel=True))
    assert "interrupt" not in scene.asked


@pytest.mark.parametrize("state", [ClaimState.CLAIMED, ClaimState.CLOSED, ClaimState.REFUSED, ClaimState.VOIDED])
async def test_of_what_is_not_active_and_settled_nothing_is_asked(state: ClaimState) -> None:
    scene = Scene()
    assert await observer(scene).observe(record(state)) is None
    assert not scene.asked


async def test_more_than_is_kept_is_skipped_and_the_last_of_it_read() -> None:
    scene = runs(output=bytes(300))
    change = await observed(scene, record(RUNNING, body(log="/tmp/ours.output", end=10, size=300)))
    assert change.append == Appended(200, bytes(100))


@pytest.mark.parametrize("kind", ["job", "exec"])
async def test_before_a_sandbox_goes_all_that_a_running_command_has_written_is_read(kind: str) -> None:
    scene = runs(output=b"out")
    change = await observed(scene, record(RUNNING, body(kind=kind, log="/tmp/ours.stdout")), thorough=True)
    assert change.state is RUNNING
    assert (
        change.append == Appended(0, b"out") if kind == "job" else change.streams == {"stdout": b"out", "stderr": b""}
    )


@pytest.mark.parametrize(("thorough", "read"), [(False, CHUNK), (True, CHUNK + 5)])
async def test_else_as_much_as_one_read_brings(thorough: bool, read: int) -> None:
    scene = runs(output=bytes(CHUNK + 5))
    change = await observer(scene, keep=2 * CHUNK).observe(record(RUNNING, CONFIRMED), thorough=thorough)
    assert isinstance(change, Change)
    assert change.body.end == read


@pytest.mark.parametrize(("polled_at", "kept"), [(1019.0, ["s"]), (1020.0, [])])
async def test_a_sandbox_is_kept_for_a_job_that_runs_once_a_minute(polled_at: float, kept: list[str]) -> None:
    scene = runs()
    what = body(log="/tmp/ours.output", polled_at=polled_at)
    await observed(scene, record(RUNNING, what, now=1021.0))
    assert scene.kept == kept
    assert 1020 % observe.EXPIRY_EVERY == 0


async def test_reads_beside_a_poll_s_own_are_charged_to_the_pace() -> None:
    for scene, what, charged in (
        (runs(output=b"x"), CONFIRMED, 0),
        (Scene(status_=status(), output=b"x"), CONFIRMED, 0),
        (Scene(status_=KILLED, fence=OURS), CONFIRMED, 1),
        (Scene(status_=status(), output=b"x"), EXEC, 1),
    ):
        await observed(scene, record(RUNNING, what))
        assert scene.charged == charged
