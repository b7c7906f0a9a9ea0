"""The callers: one for each sandbox, which runs its jobs one after the other, and others who look on."""

import asyncio
import io
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from service.client import AsyncClient, AsyncJob, AsyncSandbox, JobResult, JobState, OnceboxError
from tests.load.plan import Job, Plan
from tests.load.recording import Journal

OWNER = "load"
"""The workspace owner of all sandboxes: they share a directory of the host, in which the ledger lies."""
CREATES_AT_ONCE = 16
SANDBOXES_A_CLIENT = 50
SLACK = 240.0
"""Seconds on top of a job's own length after which whoever still waits for it hangs."""


@dataclass(frozen=True)
class Outcome:
    """What one caller got for one job; `wrong` is empty where all of it was right."""

    mark: str
    who: str
    wrong: str
    after: float | None = None
    """Seconds from the end of the command to the caller's having its whole result."""
    hung: bool = False


@dataclass
class Callers:
    """All of them, on one stack."""

    plan: Plan
    url: str
    ledger: str
    journal: Journal
    outcomes: list[Outcome] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)
    """How many jobs are where, as their callers see it."""
    ids: dict[str, str] = field(default_factory=dict)
    """The command's id, by mark."""
    ramped: asyncio.Event = field(default_factory=asyncio.Event)
    """Every sandbox is there, and its first job is under way."""
    _begun: int = 0
    _clients: dict[str, AsyncClient] = field(default_factory=dict)

    async def run(self) -> None:
        """Until every job is over and every caller has its result."""
        total = self.plan.sandboxes
        self.states["to come"] = sum(len(self.plan.jobs(number)) for number in range(total))
        gate = asyncio.Semaphore(CREATES_AT_ONCE)
        try:
            async with asyncio.TaskGroup() as group:
                for number in range(total):
                    group.create_task(self._sandbox(number, gate))
        finally:
            for client in self._clients.values():
                await client.close()

    def _client(self, who: str) -> AsyncClient:
        if who not in self._clients:
            self._clients[who] = self.journal.client(self.url, who.partition("#")[0])
        return self._clients[who]

    async def _sandbox(self, number: int, gate: asyncio.Semaphore) -> None:
        client = self._client(f"callers#{number // SANDBOXES_A_CLIENT}")
        jobs = self.plan.jobs(number)
        try:
            async with gate:
                sandbox = await client.create_sandbox(
                    workspace_owner=OWNER, wait_ready=120, timeout=7200, idempotency_key=f"load-{number}"
                )
            for place, job in enumerate(jobs):
                await self._job(number, sandbox, job, first=place == 0)
            await sandbox.delete()
        except OnceboxError as error:
            for job in jobs:
                if not any(each.mark == job.mark for each in self.outcomes):
                    self.outcomes.append(Outcome(job.mark, "caller", f"{error.code}: {error}"))
            self._one_begun()

    async def _job(self, number: int, sandbox: AsyncSandbox, job: Job, *, first: bool) -> None:
        submitted = await sandbox.submit(job.command(self.ledger, sandbox.id), timeout=1800, idempotency_key=job.mark)
        self.ids[job.mark] = submitted.id
        self._moved("to come", "running")
        if first:
            self._one_begun()
        await asyncio.gather(
            self._follow(submitted, job, "caller"),
            *(self._follow(self._client(who).job(submitted.id), job, who) for who in onlookers(number, job)),
        )
        self._moved("running", "over")

    async def _follow(self, handle: AsyncJob, job: Job, who: str) -> None:
        output = io.BytesIO()
        try:
            async with asyncio.timeout(job.seconds + SLACK * self.plan.scale):
                result = await handle.output_to(output)
        except TimeoutError:
            self.outcomes.append(Outcome(job.mark, who, "hung", hung=True))
            return
        except OnceboxError as error:
            self.outcomes.append(Outcome(job.mark, who, f"{error.code}: {error}"))
            return
        wrong = difference(job, result, output.getvalue())
        after = None
        if result.finished_at is not None:
            after = max(0.0, time.time() - datetime.fromisoformat(result.finished_at).timestamp())
        self.outcomes.append(Outcome(job.mark, who, wrong, after))

    def _one_begun(self) -> None:
        self._begun += 1
        if self._begun == self.plan.sandboxes:
            self.ramped.set()

    def _moved(self, before: str, after: str) -> None:
        self.states[before] -= 1
        self.states[after] += 1


def onlookers(number: int, job: Job) -> list[str]:
    """Who else follows a job: for a fifth of the quiet ones one who only waits, for some others two more."""
    if job.kind == "quiet" and number % 5 == 0:
        return ["quiet"]
    return ["onlooker#1", "onlooker#2"] if job.kind == "steady" and number % 5 == 1 else []


def difference(job: Job, result: JobResult, output: bytes) -> str:
    """What is wrong with a result; empty: nothing."""
    if result.state is not JobState.EXITED or result.exit_code != job.exit_code:
        return f"{result.state.value} {result.exit_code} ({result.reason}), not exited {job.exit_code}"
    if output != job.output:
        return f"{len(output)} bytes of output that differ from the {len(job.output)} that were printed"
    if not result.output_complete or result.skipped_bytes:
        return f"output_complete={result.output_complete} skipped_bytes={result.skipped_bytes}"
    return ""


async def recorded(url: str, jobs: list[tuple[str, Job]]) -> list[str]:
    """What is wrong with results that are asked for once more, now that their sandboxes are gone."""
    wrong = []
    async with AsyncClient(url) as client:
        for command_id, job in jobs:
            output = io.BytesIO()
            result = await client.job(command_id).output_to(output, timeout=60)
            if found := difference(job, result, output.getvalue()):
                wrong.append(f"{job.mark}: {found}")
    return wrong
