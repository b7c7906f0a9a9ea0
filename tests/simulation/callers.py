"""Callers: they create sandboxes and submit jobs with keys, and retry on any replica until they know."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from service import errors
from service.core.app import Core
from service.core.model.answers import Answer, OutputPage
from service.messages import CreateSandbox, Job, JobOutput, Sandbox, SubmitJob
from tests.simulation.history import Call, Seen, Step
from tests.simulation.loop import Host
from tests.simulation.network import Dropped
from tests.simulation.plan import CallerPlan

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
        try:
            sandbox = await self._create()
        except GivenUp:
            return
        jobs = [self._job(sandbox, number) for number in range(self.plan.jobs)]
        at_once = self.rng.randint(1, 4)
        while jobs:
            some, jobs = jobs[:at_once], jobs[at_once:]
            await asyncio.gather(*some)
            await asyncio.sleep(self.rng.uniform(0.0, 0.5))

    async def _create(self) -> str:
        key = f"{self.name}-box"
        request = CreateSandbox(timeout=3600, wait_ready=5)

        async def create(core: Core) -> Answer[Sandbox]:
            return await core.sandboxes.create(self.plan.tenant, request, key)

        call = self._call("create", key=key, body="box")
        answer = await self._until(call, 201, create, lambda answer: _of_sandbox(answer.value))
        return answer.value.sandbox_id

    async def _job(self, sandbox: str, number: int) -> None:
        rng = self.rng
        mark = f"{self.name}-{number}"
        key = f"{mark}-key"
        command = f"run {mark} {rng.choice((0.01, 0.1, 1.0, 5.0))} {rng.choice((0, 0, 3))} {rng.randint(0, 3)}"
        request = SubmitJob(sandbox_id=sandbox, command=command, timeout=rng.choice((3, 30)))
        self.world.submissions += 1

        async def submit(core: Core) -> Answer[Job]:
            return await core.jobs.submit(self.plan.tenant, request, key)

        with contextlib.suppress(GivenUp):
            call = self._call("submit", key=key, mark=mark, sandbox=sandbox)
            answer = await self._until(call, 202, submit, lambda answer: _of_job(answer.value))
            await self._follow(answer.value.command_id)

    async def _follow(self, id: str) -> None:
        text, cursor = "", None

        async def poll(core: Core) -> OutputPage:
            return await core.jobs.get(self.plan.tenant, id, cursor=cursor, wait=5)

        def seen(page: OutputPage) -> Seen:
            job = page.whole()
            assert isinstance(job, JobOutput)
            over = job.cursor is None
            return msgspec.structs.replace(
                _of_job(job),
                over=over,
                output=(job.output if job.replace else text + job.output) if over else None,
                output_complete=job.output_complete,
                steps=tuple(Step(step.state, step.attempt) for step in job.history),
            )

        while True:
            page = await self._until(self._call("output", of=id), 200, poll, seen)
            job = page.whole()
            assert isinstance(job, JobOutput)
            text = job.output if job.replace else text + job.output
            cursor = job.cursor
            if cursor is None:
                return

    # -- one request, again and again

    def _call(self, what: Any, **more: Any) -> Call:
        return Call(at=0.0, until=0.0, caller=self.name, tenant=self.plan.tenant, what=what, **more)

    async def _until(
        self, call: Call, status: int, work: Callable[[Core], Awaitable[T]], seen: Callable[[T], Seen]
    ) -> T:
        """Ask any replica, until there is an answer; each request is noted."""
        world, rng = self.world, self.rng
        for _ in range(TRIES):
            replica = rng.choice(world.replicas)
            pause = rng.uniform(0.1, 1.0)
            at = world.loop.now
            told: dict[str, Any] = {}
            answer: T | None = None
            try:
                answer = await world.call(replica, f"{call.what} {call.key or call.of}", work)
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
                told = {"status": status, "seen": (seen(answer),)}
            noted = msgspec.structs.replace(call, at=at, until=world.loop.now, replica=replica.name, **told)
            world.tell(noted)
            if noted.good and answer is not None:
                return answer
            if noted.status and not noted.retryable:
                raise GivenUp
            await asyncio.sleep(pause)
        raise GivenUp


def _of_sandbox(sandbox: Sandbox) -> Seen:
    return Seen(id=sandbox.sandbox_id, state=sandbox.state.value)


def _of_job(job: Job) -> Seen:
    reason = None if job.reason is None else job.reason.value
    return Seen(id=job.command_id, state=job.state.value, exit_code=job.exit_code, reason=reason, fenced=job.fenced)
