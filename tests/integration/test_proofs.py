"""What is said of a command that execd took is proved by its fence: nothing that it printed is believed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from service import errors
from service.core import records
from service.core.app import Core
from service.core.fence.protocol import Boot
from service.core.jobs import submit as submitting
from service.core.jobs import trouble
from service.core.jobs.decisions import Change, Decision
from service.core.model import identity
from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.messages import Exec, ExecText, JobState, Reason, SubmitJob
from service.ports.engine import CommandSpec
from service.ports.store import Record
from tests.integration.core_rig import Rig, eventually, execute, follow, submit
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.integration

TOKEN = 't=$(tr "\\0" " " </proc/$PPID/cmdline | grep -o "[0-9a-f]\\{32\\}" | head -n 1)'
"""A command's way to learn its token."""


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """What can't be proved is given up soon."""
    monkeypatch.setattr(trouble, "DEADLINE_GRACE", 2.0)


async def job(core: Core, id: str) -> tuple[Record, JobBody]:
    record = await core.store.get(id)
    assert record is not None
    return record, records.job_body(record)


# -- what a command prints


@pytest.fixture
def looked_at_when_over(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look at each command comes when it is over."""
    confirm = core.reconciler.confirm

    async def late(record: Record, body: JobBody) -> Decision | JobBody:
        assert body.engine_id is not None
        while (await core.engine.status(body.sandbox_id, body.engine_id)).running:
            await asyncio.sleep(0.05)
        return await confirm(record, body)

    monkeypatch.setattr(core.reconciler, "confirm", late)


def printing(core: Core, met: str, before: str = "") -> str:
    """A command that prints its own marker, as its fence and mark have it."""
    directory = core.settings.fence_dir
    return (
        f"echo x >>ran; {TOKEN}; read -r b <{directory}/boot; read -r f <{directory}/$t; f=${{f#fp=}}; "
        f'{before}echo "oncebox-fence $t {met}"'
    )


KINDS = ["fp=$f", "void $b", "boot", "none"]


@pytest.mark.parametrize("before", ["", "echo warning; "])
@pytest.mark.parametrize("met", KINDS)
@pytest.mark.usefixtures("short_grace", "looked_at_when_over")
async def test_a_job_that_wipes_the_fences_and_prints_its_own_marker_runs_once_and_is_lost(
    core: Core, box: str, before: str, met: str
) -> None:
    id = await submit(core, box, f"{printing(core, met, before)}; rm -rf {core.settings.fence_dir}", timeout=3)
    seen: set[JobState] = set()

    async def over() -> bool:
        record, body = await job(core, id)
        seen.add(records.job_state(record, body))
        return not record.state.active

    await eventually(over, seconds=40)
    record, body = await job(core, id)
    assert (record.state, record.attempt) == (ClaimState.CLOSED, 1)
    assert (body.state, body.reason) == (JobState.LOST, Reason.FENCE_WIPED)
    assert JobState.UNKNOWN in seen
    assert await execute(core, box, "cat ran") == "x\n"


@pytest.mark.parametrize("met", KINDS)
@pytest.mark.usefixtures("short_grace", "looked_at_when_over")
async def test_a_job_that_removes_its_own_fence_and_prints_its_own_marker_has_the_end_that_its_wrapper_noted(
    core: Core, box: str, met: str
) -> None:
    id = await submit(core, box, f"{printing(core, met)}; rm -f {core.settings.fence_dir}/$t; exit 5", timeout=3)
    page, _ = await follow(core, id)
    assert (page.state, page.exit_code) == (JobState.EXITED, 5)
    record, _ = await job(core, id)
    assert record.attempt == 1
    assert await execute(core, box, "cat ran") == "x\n"


async def test_a_job_whose_fence_stands_may_print_every_marker(core: Core, box: str) -> None:
    command = f'{TOKEN}; for m in boot none "void x" fp=x; do echo "oncebox-fence $t $m"; done; exit 5'
    page, text = await follow(core, await submit(core, box, command))
    assert (page.state, page.exit_code) == (JobState.EXITED, 5)
    assert text.count("oncebox-fence ") == 4


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("warned", ["", "bash: warning: setlocale: LC_ALL: cannot change locale\n"])
@pytest.mark.parametrize("printed", ["all", "nothing"])
async def test_a_command_that_met_another_mark_is_never_exited(
    core: Core, box: str, warned: str, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job wipes the directory between the dispatch and the start; a locale's warning comes first."""
    submitted = core.engine.submit

    async def wiped(sandbox_id: str, spec: CommandSpec) -> str:
        await core.engine.run_short(sandbox_id, f"rm -rf {core.settings.fence_dir}", timeout=10)
        await core.fences.ready(sandbox_id)
        command = f"printf '{warned}'; {spec.command}" if printed == "all" else f"exec >/dev/full; {spec.command}"
        return await submitted(sandbox_id, msgspec.structs.replace(spec, command=command))

    monkeypatch.setattr(core.engine, "submit", wiped)
    id = await submit(core, box, "echo x >>ran", timeout=2)
    page, text = await follow(core, id)
    assert (page.state, page.reason, text) == (JobState.LOST, Reason.FENCE_WIPED, "")
    assert await execute(core, box, "cat ran 2>/dev/null || echo none") == "none\n"


async def test_where_no_fence_can_be_made_the_job_fails_and_may_be_sent_again(
    core: Core, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted = core.engine.submit
    first = True

    async def full(sandbox_id: str, spec: CommandSpec) -> str:
        nonlocal first
        if first:
            first = False
            token = spec.command[2:34]
            await core.engine.run_short(sandbox_id, f"ln -s /nosuch/file {core.settings.fence_dir}/{token}", timeout=10)
        return await submitted(sandbox_id, spec)

    monkeypatch.setattr(core.engine, "submit", full)
    page, _ = await follow(core, await submit(core, box, "echo x >>ran", "key"))
    assert (page.state, page.reason) == (JobState.FAILED, Reason.NO_FENCE)
    assert await execute(core, box, "cat ran 2>/dev/null || echo none") == "none\n"


async def test_a_void_of_another_mark_sends_nothing_again(
    core: Core, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job ran; what stands in place of its fence is a void that was not made under its dispatch's mark."""
    monkeypatch.setattr(trouble, "DEADLINE_GRACE", 2.0)
    void = f'echo "void another 1" >{core.settings.fence_dir}/$t'
    command = f'echo x >>ran; {TOKEN}; {void}; echo "oncebox-fence $t void another 1"'
    id = await submit(core, box, command, timeout=2)
    await follow(core, id)
    record, _ = await job(core, id)
    assert record.attempt == 1
    assert await execute(core, box, "cat ran") == "x\n"


# -- without a fence


@pytest.fixture
async def unmarked(core: Core, box: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A sandbox whose mark is made after it was looked for."""
    assert await core.fences.boot(box) is not None

    async def none(_: str) -> None:
        return None

    monkeypatch.setattr(core.fences, "boot", none)
    return box


@pytest.mark.usefixtures("looked_at_when_over")
async def test_an_unfenced_job_that_meets_a_mark_is_lost(core: Core, unmarked: str) -> None:
    page, text = await follow(core, await submit(core, unmarked, "echo hi; exit 3", None))
    assert (page.fenced, page.state, page.exit_code) == (False, JobState.LOST, None)
    assert (page.reason, text) == (Reason.START_NOT_CONFIRMED, "")


async def test_an_unfenced_exec_that_meets_a_mark_has_no_result(core: Core, unmarked: str) -> None:
    request = Exec(sandbox_id=unmarked, command="echo hi; exit 3")
    with pytest.raises(errors.OutcomeUnknown):
        await core.execs.run("default", request, None)
    with pytest.raises(errors.OutcomeUnknown):
        await no_text(core, request)


async def no_text(core: Core, request: Exec) -> None:
    async for event in core.execs.stream("default", request, None):
        assert not isinstance(event.data, ExecText), "nothing ran"


# -- answers that are another's


async def voided_then_ran(core: Core, box: str, redis_server: RedisServer, command: str) -> str:
    """Attempt 1 was voided, attempt 2 runs, and Redis is emptied."""
    id = identity.command_id(box, identity.job_ref(identity.job_digest("default", box, "key")))
    mark = await core.fences.boot(box)
    assert mark is not None
    assert (await core.fences.void(box, identity.token_of(id, 1), mark.text)).outcome == "voided"
    assert await submit(core, box, command, "key") == id

    async def runs() -> bool:
        record, _ = await job(core, id)
        return (record.state, record.attempt) == (ClaimState.RUNNING, 2)

    await eventually(runs)
    with redis_server.client() as client:
        client.flushall()
    return id


async def test_after_redis_lost_its_data_another_request_is_not_told_of_a_second_attempt(
    core: Core, other: Core, box: str, redis_server: RedisServer
) -> None:
    command = "echo one; sleep 3; exit 3"
    id = await voided_then_ran(core, box, redis_server, command)
    for _ in range(2):
        with pytest.raises(errors.IdempotencyKeyReused):
            await submit(other, box, "echo two", "key")
    with pytest.raises(errors.IdempotencyKeyReused):
        await other.execs.run("default", Exec(sandbox_id=box, command="echo two"), "key")
    assert await submit(other, box, command, "key") == id
    page, text = await follow(other, id)
    assert (page.state, page.exit_code, text) == (JobState.EXITED, 3, "one\n")


async def test_after_redis_lost_its_data_another_exec_gets_no_result_of_a_first_one(
    core: Core, other: Core, box: str, redis_server: RedisServer
) -> None:
    await voided_then_ran(core, box, redis_server, "echo one; sleep 2; exit 3")
    with pytest.raises(errors.IdempotencyKeyReused):
        await other.execs.run("default", Exec(sandbox_id=box, command="echo two"), "key")
    with contextlib.suppress(errors.IdempotencyKeyReused):
        async for event in other.execs.stream("default", Exec(sandbox_id=box, command="echo two"), "key"):
            pytest.fail(f"another's run was shown: {event}")


async def test_a_keyed_submission_whose_command_is_not_confirmed_is_no_answer_yet(
    core: Core, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submitting, "CONFIRMED_WAIT", 0.5)
    confirm = core.reconciler.confirm

    async def not_yet(record: Record, body: JobBody) -> Decision:
        return Change(state=record.state, body=body, notify=False)

    monkeypatch.setattr(core.reconciler, "confirm", not_yet)
    assert await submit(core, box, "exit 3", None), "no other request can have this key"
    assert await submit(core, box, "exit 3", "new"), "nor this one, in a sandbox that this Redis knows from its start"
    await forget_its_start(core, box)
    with pytest.raises(errors.OutcomeUnknown) as told:
        await submit(core, box, "exit 3", "key")
    assert told.value.retryable
    monkeypatch.setattr(core.reconciler, "confirm", confirm)
    page, _ = await follow(core, await submit(core, box, "exit 3", "key"))
    assert (page.state, page.exit_code) == (JobState.EXITED, 3)


async def forget_its_start(core: Core, box: str) -> None:
    """As if Redis had been emptied, and the sandbox found at the engine since."""
    raw, known = await core.sandbox_records.read(box)
    assert known is not None
    assert await core.sandbox_records.swap(box, raw, msgspec.structs.replace(known, found=True))


class Held:
    """A step of a replica that waits until it is told to go on."""

    def __init__(self, step: Callable[..., Awaitable[Any]]) -> None:
        self._step = step
        self.reached, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, *args: Any, **more: Any) -> Any:
        self.reached.set()
        await self.go.wait()
        return await self._step(*args, **more)


async def test_another_request_waits_until_the_run_is_confirmed(
    here: Rig, core: Core, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told that a key is used, by a record that may yet turn out to be of another's run."""
    hasty = await here.replica(claim_wait=0.3)
    monkeypatch.setattr(submitting, "CONFIRMED_WAIT", 0.3)
    sends = Held(core.engine.submit)
    monkeypatch.setattr(core.engine, "submit", sends)
    first = asyncio.ensure_future(submit(core, box, "exit 3", "key"))
    await sends.reached.wait()
    with pytest.raises(errors.OutcomeUnknown):
        await submit(hasty, box, "exit 4", "key")
    monkeypatch.setattr(submitting, "CONFIRMED_WAIT", 30.0)
    sends.go.set()
    with pytest.raises(errors.IdempotencyKeyReused):
        await submit(hasty, box, "exit 4", "key")
    page, _ = await follow(core, await first)
    assert page.exit_code == 3


async def test_a_stale_owner_hears_what_its_command_came_to_and_the_other_request_that_its_key_is_used(
    core: Core, other: Core, box: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X has its claim and has not sent; Redis is emptied; Y claims, and sees no fence yet; X's command runs."""
    x, y = "echo x >>ran; sleep 1; exit 3", "echo y >>ran"
    sends, later = Held(core.engine.submit), Held(other.engine.submit)
    monkeypatch.setattr(core.engine, "submit", sends)
    monkeypatch.setattr(other.engine, "submit", later)
    first = asyncio.ensure_future(submit(core, box, x, "key"))
    await sends.reached.wait()
    with redis_server.client() as client:
        client.flushall()
    second = asyncio.ensure_future(submit(other, box, y, "key"))
    await later.reached.wait()
    sends.go.set()
    await asyncio.sleep(0.5)
    assert not first.done(), "whose run it is was not known yet"
    later.go.set()
    id = await first
    with pytest.raises(errors.IdempotencyKeyReused):
        await second
    page, _ = await follow(core, id)
    assert (page.state, page.exit_code) == (JobState.EXITED, 3)
    assert await execute(core, box, "cat ran") == "x\n"


async def test_a_stale_owner_that_has_sent_is_not_told_that_nothing_ran_because_another_failed(
    core: Core, other: Core, box: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = Held(core.engine.submit)
    monkeypatch.setattr(core.engine, "submit", sends)
    first = asyncio.ensure_future(submit(core, box, "echo x >>ran; sleep 1", "key"))
    await sends.reached.wait()
    with redis_server.client() as client:
        client.flushall()

    async def refused(*_: Any, **__: Any) -> Boot:
        raise errors.SandboxNotRunning(sandbox_id=box)

    monkeypatch.setattr(other.preparation, "_surroundings", refused)
    with pytest.raises(errors.SandboxNotRunning):
        await submit(other, box, "echo y >>ran", "key")
    sends.go.set()
    with pytest.raises(errors.OutcomeUnknown):
        await first
    assert await submit(core, box, "echo x >>ran; sleep 1", "key")
    await asyncio.sleep(1.5)
    assert await execute(core, box, "cat ran") == "x\n"


# -- a replica that stops


async def test_after_its_grace_a_replica_sends_no_next_attempt(core: Core, other: Core, box: str) -> None:
    id = identity.command_id(box, identity.job_ref(identity.job_digest("default", box, "key")))
    mark = await core.fences.boot(box)
    assert mark is not None
    await core.fences.void(box, identity.token_of(id, 1), mark.text)
    first_look = core.polls.poll
    seen: list[str] = []

    async def late(command_id: str, record: Record | None = None) -> Record | None:
        """The grace ends between the submission and its first look."""
        await core.ownership.drain(0.0)
        seen.append(command_id)
        return await first_look(command_id, record)

    core.polls.poll = late  # type: ignore[method-assign, assignment]
    sent: list[str] = []
    submitted = core.engine.submit

    async def counted(sandbox_id: str, spec: CommandSpec) -> str:
        sent.append(spec.command)
        return await submitted(sandbox_id, spec)

    core.engine.submit = counted  # type: ignore[method-assign]
    submission = asyncio.ensure_future(core.jobs.submit("default", SubmitJob(sandbox_id=box, command="exit 3"), "key"))
    page, _ = await follow_later(other, id)
    assert seen
    assert len(sent) == 1, "the next attempt is another replica's"
    assert (page.state, page.exit_code) == (JobState.EXITED, 3)
    await submission


async def follow_later(core: Core, id: str) -> tuple[Any, str]:
    async def there() -> bool:
        return await core.store.get(id) is not None

    await eventually(there)
    return await follow(core, id)


async def test_what_was_reopened_as_the_grace_ended_is_given_back(core: Core, box: str) -> None:
    body = JobBody(tenant="default", sandbox_id=box, fingerprint="x", command="", timeout=1, submitted_at=0.0)
    id = identity.command_id(box, identity.job_ref(identity.job_digest("default", box, "key")))
    ours, mine, _ = await core.store.claim(
        id, token=identity.random_token(), owner="me", lease=60.0, body=records.encode(body), request=b"{}"
    )
    assert ours
    await core.ownership.drain(0.0)

    async def work(_: Record) -> Record | None:
        pytest.fail("a replica whose grace is over takes nothing")

    await core.ownership.take_up(mine, work)
    record, _ = await job(core, id)
    assert record.lease_expired
