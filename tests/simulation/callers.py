"""Callers: they create sandboxes and submit jobs with keys, and retry on any replica until they know."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from service import errors
from service.core.app import Core
from service.core.model.answers import Answer, OutputPage
from service.messages import CreateSandbox, Job, JobOutput, Sandbox, SubmitJob
from tests.simulation.history import Call, Seen, Step
from tests.simulation.loop import Host
from tests.simulation.network import Dropped
from tests.simulation.plan import TENANTS, CallerPlan

if TYPE_CHECKING:
    from tests.simulation.world import World

T = TypeVar("T")

TRIES = 200


class GivenUp(Exception):
    """A caller that was told no for good, or has no patience left."""


class Caller:
    """One caller, with one sandbox."""

    def __init__(self, world: World, plan: CallerPlan) -> None:
        self.world = world
        self.plan = plan
        self.rng = random.Random(plan.seed)
        self.host = Host(f"caller{plan.number}", world.loop)

    @property
    def name(self) -> str:
        """As the history has it."""
        return f"c{self.plan.number}"

    async def run(self) -> None:
        """All that it does."""
        await asyncio.sleep(self.plan.at)
        with contextlib.suppress(GivenUp):
            await self._with_sandbox(await self._create())

    async def _with_sandbox(self, sandbox: str) -> None:
        rng = self.rng
        jobs = list(range(self.plan.jobs))
        at_once = rng.randint(1, 8)
        while jobs:
            some, jobs = jobs[:at_once], jobs[at_once:]
            await asyncio.gather(*(self._job(sandbox, number) for number in some))
            await asyncio.sleep(rng.uniform(0.0, 2.0))
        if rng.random() < 0.1:
            await self._patiently(self._create())
        if rng.random() < 0.2:
            await self._patiently(self._delete(sandbox))

    async def _patiently(self, work: Coroutine[Any, Any, Any]) -> None:
        """Something that may be refused, or find nothing."""
        with contextlib.suppress(GivenUp):
            await work

    async def _create(self) -> str:
        """Its sandbox; now and then by two requests at once."""
        key = f"{self.name}-box"
        request = CreateSandbox(timeout=3600, wait_ready=5)

        async def create(core: Core) -> Answer[Sandbox]:
            return await core.sandboxes.create(self.plan.tenant, request, key)

        async def once() -> str:
            call = self._call("create", key=key, body="box")
            answer = await self._until(call, 201, create, lambda answer: (_of_sandbox(answer.value),))
            return answer.value.sandbox_id

        return (await asyncio.gather(*(once() for _ in range(1 + (self.rng.random() < 0.2)))))[0]

    async def _delete(self, sandbox: str) -> None:
        async def delete(core: Core) -> None:
            await core.sandboxes.delete(self.plan.tenant, sandbox)

        await self._until(self._call("delete", of=sandbox), 204, delete, lambda _: ())

    async def _job(self, sandbox: str, number: int) -> None:
        """A job from its submission to its end, with all that its caller may do meanwhile."""
        rng = self.rng
        mark = f"{self.name}-{number}"
        key = f"{mark}-key" if rng.random() < 0.9 else None
        doing = rng.choices(("nothing", "rival", "other", "cancel", "again", "stranger"), (50, 12, 8, 12, 10, 8))[0]
        seconds = rng.choice((0.01, 0.01, 0.1, 0.1, 1.0, 5.0))
        command = f"run {mark} {seconds} {rng.choice((0, 0, 3, 113))} {rng.randint(0, 3)}"
        if rng.random() < 0.01:
            command = f"wipe {command}"
        timeout = rng.choice((3, 30))
        submitting = [self._submit(sandbox, mark, command, timeout, key)]
        if doing == "rival" and key is not None:
            submitting.append(self._submit(sandbox, mark, command, timeout, key))
        if doing == "other" and key is not None:
            other = command.replace(mark, f"{mark}x")
            submitting.append(self._submit(sandbox, f"{mark}x", other, timeout, key))
        ids = {id for id in await asyncio.gather(*submitting) if id is not None}
        for id in sorted(ids):
            beside = [self._follow(id)]
            if doing == "cancel":
                beside.append(self._cancel(id, rng.uniform(0.0, 1.5 * seconds)))
            if doing == "stranger":
                beside.append(self._stranger(id))
            await asyncio.gather(*(self._patiently(each) for each in beside))
        if doing == "again" and key is not None:
            last = await self._submit(sandbox, mark, command, timeout, key)
            if last is not None:
                await self._patiently(self._follow(last))

    async def _submit(self, sandbox: str, mark: str, command: str, timeout: int, key: str | None) -> str | None:
        """The job's id; None: the answer was no, or, where there is no key to try again with, none came."""
        request = SubmitJob(sandbox_id=sandbox, command=command, timeout=timeout)
        self.world.submissions += 1

        async def submit(core: Core) -> Answer[Job]:
            return await core.jobs.submit(self.plan.tenant, request, key)

        call = self._call("submit", key=key, mark=mark, sandbox=sandbox)
        try:
            tries = TRIES if key is not None else 1
            return (await self._until(call, 202, submit, lambda it: (_of_job(it.value),), tries)).value.command_id
        except GivenUp:
            return None

    async def _cancel(self, id: str, after: float) -> None:
        async def cancel(core: Core) -> Job:
            return await core.jobs.cancel(self.plan.tenant, id)

        await asyncio.sleep(after)
        await self._until(self._call("cancel", of=id), 202, cancel, lambda job: (_of_job(job),))

    async def _stranger(self, id: str) -> None:
        """Another tenant asks for the job."""
        other = next(tenant for tenant in TENANTS if tenant != self.plan.tenant)

        async def look(core: Core) -> OutputPage:
            return await core.jobs.get(other, id)

        call = msgspec.structs.replace(self._call("status", of=id), tenant=other, caller=f"{self.name}-stranger")
        await self._until(call, 200, look, lambda page: (_of_job(page.job),))

    async def _follow(self, id: str) -> None:
        text, cursor = "", None

        async def poll(core: Core) -> OutputPage:
            return await core.jobs.get(self.plan.tenant, id, cursor=cursor, wait=wait)

        def seen(page: OutputPage) -> tuple[Seen]:
            job = page.whole()
            assert isinstance(job, JobOutput)
            over = job.cursor is None
            told = msgspec.structs.replace(
                _of_job(job),
                over=over,
                output=(job.output if job.replace else text + job.output) if over else None,
                output_complete=job.output_complete,
                steps=tuple(Step(step.state, step.attempt) for step in job.history),
            )
            return (told,)

        while True:
            wait = self.rng.choice((0.0, 5.0, 20.0))
            page = await self._until(self._call("output", of=id), 200, poll, seen)
            job = page.whole()
            assert isinstance(job, JobOutput)
            text = job.output if job.replace else text + job.output
            cursor = job.cursor
            if cursor is None:
                return
            if not wait:
                await asyncio.sleep(self.rng.uniform(0.1, 1.0))

    # -- one request, again and again

    def _call(self, what: Any, **more: Any) -> Call:
        return Call(at=0.0, until=0.0, caller=self.name, tenant=self.plan.tenant, what=what, **more)

    async def _until(
        self,
        call: Call,
        status: int,
        work: Callable[[Core], Awaitable[T]],
        seen: Callable[[T], tuple[Seen, ...]],
        tries: int = TRIES,
    ) -> T:
        """Ask any replica, until there is an answer; each request is noted."""
        world, rng = self.world, self.rng
        for _ in range(tries):
            replica = rng.choice(world.replicas)
            pause = rng.uniform(0.1, 1.0)
            at = world.loop.now
            told: dict[str, Any] = {}
            answers: list[T] = []
            try:
                answers.append(await world.call(replica, f"{call.what} {call.key or call.of}", work))
            except Dropped:
                pass
            except errors.OnceboxError as error:
                told = {
                    "status": error.status,
                    "code": error.code,
                    "retryable": error.retryable,
                    "told_id": error.command_id or "",
                }
                pause = max(pause, error.retry_after or 0.0)
            else:
                told = {"status": status, "seen": seen(answers[0])}
            noted = msgspec.structs.replace(call, at=at, until=world.loop.now, replica=replica.name, **told)
            world.tell(noted)
            if answers:
                return answers[0]
            if noted.status and not noted.retryable:
                raise GivenUp
            await asyncio.sleep(pause)
        raise GivenUp


def _of_sandbox(sandbox: Sandbox) -> Seen:
    return Seen(id=sandbox.sandbox_id, state=sandbox.state.value)


def _of_job(job: Job) -> Seen:
    reason = None if job.reason is None else job.reason.value
    return Seen(id=job.command_id, state=job.state.value, exit_code=job.exit_code, reason=reason, fenced=job.fenced)
