"""Interrupts that come before the id of what is made is known to anybody: nothing is left behind."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from service.cli import foreground
from service.cli.commands import sandboxes
from service.cli.foreground import ForegroundRun, RunRequest
from service.cli.interrupts import Interrupts
from service.settings import Settings
from tests.support.waiting import PATIENCE
from tests.unit.cli.fakes import COMMAND_ID, FakeSandbox, FakeService


@pytest.fixture(params=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
def number(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    """A signal that is not ignored, as it is where the tests were started in the background."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0)


def foreground_run(request: RunRequest) -> ForegroundRun:
    new = ForegroundRun(request, Settings(url="http://127.0.0.1:1"))
    new.interrupts = Interrupts(new.leave)  # not entered: the test sends them itself
    return new


async def test_a_creation_leaves_no_sandbox(
    fake: FakeService, number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.create_gate = asyncio.Event()
    creating = asyncio.create_task(sandboxes._create({}, None, as_json=False))
    await until(lambda: fake.created)

    os.kill(os.getpid(), number)

    assert await creating == 128 + number
    assert (len(fake.created), fake.deleted) == (1, ["new1"])
    assert capfd.readouterr().out == ""


async def test_a_creation_with_a_key_is_left_to_whoever_has_the_key(
    fake: FakeService, number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.create_gate = asyncio.Event()
    creating = asyncio.create_task(sandboxes._create({}, "k", as_json=False))
    await until(lambda: fake.created)

    os.kill(os.getpid(), number)

    assert await creating == 128 + number
    assert fake.deleted == []
    assert "the same command with its key" in capfd.readouterr().err


@pytest.mark.parametrize("detach", (False, True))
async def test_a_run_leaves_no_sandbox_that_was_being_made(fake: FakeService, detach: bool) -> None:
    fake.create_gate = asyncio.Event()
    under_test = foreground_run(RunRequest(command="true", detach=detach))
    running = asyncio.create_task(under_test.run())
    await until(lambda: fake.created)

    under_test.interrupts.first.set()

    assert await running == 130
    assert (len(fake.created), fake.submitted, fake.deleted) == (1, [], ["new1"])


async def test_a_detached_job_whose_id_was_not_printed_yet_is_cancelled(
    fake: FakeService, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.submit_gate = asyncio.Event()
    fake.job_to_come.hangs = True
    under_test = foreground_run(RunRequest(command="sleep 100", detach=True))
    running = asyncio.create_task(under_test.run())
    await until(lambda: fake.submitted)

    under_test.interrupts.first.set()
    await asyncio.sleep(0)
    fake.submit_gate.set()

    assert await running == 130
    assert (fake.job_to_come.cancels, fake.deleted) == (1, ["new1"])
    assert COMMAND_ID not in capfd.readouterr().out


async def test_a_detached_job_with_a_key_is_printed_all_the_same(
    fake: FakeService, capfd: pytest.CaptureFixture[str]
) -> None:
    fake.submit_gate = asyncio.Event()
    under_test = foreground_run(RunRequest(command="sleep 100", detach=True, key="k"))
    running = asyncio.create_task(under_test.run())
    await until(lambda: fake.submitted)

    under_test.interrupts.first.set()
    await asyncio.sleep(0)
    fake.submit_gate.set()

    assert await running == 130
    assert (fake.job_to_come.cancels, fake.deleted) == (0, [])
    assert capfd.readouterr().out == f"{COMMAND_ID}\n"


async def test_a_submission_to_a_named_sandbox_that_is_not_answered_is_spoken_of(
    fake: FakeService, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreground, "GRACE", 0.01)
    fake.submit_gate = asyncio.Event()
    under_test = foreground_run(RunRequest(command="sleep 100", sandbox="mine"))
    running = asyncio.create_task(under_test.run())
    await until(lambda: fake.submitted)

    under_test.interrupts.first.set()

    assert await running == 130
    assert "oncebox ps --sandbox mine" in capfd.readouterr().err


async def test_a_service_that_does_not_answer_any_more_does_not_hold_an_interrupted_creation_for_ever(
    fake: FakeService, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(self: FakeSandbox) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(FakeSandbox, "delete", hangs)
    monkeypatch.setattr("service.cli.creating.UNDO", 0.01)
    fake.create_gate = asyncio.Event()
    under_test = foreground_run(RunRequest(command="true"))
    running = asyncio.create_task(under_test.run())
    await until(lambda: fake.created)

    under_test.interrupts.first.set()

    assert await running == 130
    assert "oncebox sandboxes ls" in capfd.readouterr().err
