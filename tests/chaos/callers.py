"""Callers with little patience: they create, submit, cancel, poll, leave in the middle, and retry with their keys."""

import asyncio
import hashlib
import random
from collections.abc import Mapping
from typing import Any

from tests.chaos.recorder import Recorder, What, command
from tests.faults.caller import TERMINAL, Answer
from tests.faults.rig import Rig
from tests.simulation.history import SandboxEnded

TENANTS = {"red": 6, "blue": None}
"""Whose jobs are limited to how many at once."""
JOB_TIMEOUT = 20
"""Seconds; some commands take longer."""


def key_of(tenant: str) -> str:
    """An API key."""
    return f"obx_chaos-{tenant}"


def tenants_file() -> str:
    """All tenants may mount the directory that holds the ledger."""
    tables = []
    for tenant, jobs in TENANTS.items():
        digest = hashlib.sha256(key_of(tenant).encode()).hexdigest()
        quota = f"quota = {{ jobs = {jobs} }}\n" if jobs is not None else ""
        tables.append(f'[{tenant}]\nkeys = ["{digest}"]\nowners = ["*"]\n{quota}')
    return "\n".join(tables)


class ChaosCaller:
    """One caller: a sandbox, some jobs in it, then another one, until ``stop`` is set; what is under way is ended."""

    def __init__(self, rig: Rig, recorder: Recorder, number: int, seed: str, lines: dict[str, int]) -> None:
        self.rig = rig
        self.recorder = recorder
        self.name = f"c{number}"
        self.tenant = sorted(TENANTS)[number % len(TENANTS)]
        self.rng = random.Random(f"{seed} {self.name}")
        self.stop = asyncio.Event()
        self.deadline = float("inf")
        """When it has waited long enough, by the recorder's clock."""
        self.following = 0
        """Jobs of it that are not over, as far as it knows."""
        self.ids: list[str] = []
        self.sandboxes: list[str] = []
        self.lines = lines

    async def run(self) -> None:
        """All that it does."""
        round = 0
        while not self.stop.is_set():
            round += 1
            sandbox = await self._create(f"{self.name}-s{round}")
            if sandbox is None:
                await asyncio.sleep(0.5)
                continue
            self.sandboxes.append(sandbox)
            await self._jobs(sandbox, f"{self.name}-s{round}")
            if self.rng.random() < 0.7:
                # From here on it may be gone, whatever the answer is.
                self.recorder.add(SandboxEnded(at=self.recorder.now(), sandbox=sandbox, why="its caller deletes it"))
                await self._ask("DELETE", f"/v1/sandboxes/{sandbox}", "delete", of=sandbox)

    async def _jobs(self, sandbox: str, prefix: str) -> None:
        rng = self.rng
        for batch in range(rng.randint(1, 4)):
            if self.stop.is_set():
                return
            await asyncio.gather(
                *(self._job(sandbox, f"{prefix}-j{batch}{number}") for number in range(rng.randint(1, 3)))
            )

    async def _create(self, key: str) -> str | None:
        asked = {"workspace_owner": "ledger", "wait_ready": 20, "timeout": 3600}
        answer = await self._until_answered("/v1/sandboxes", asked, "create", key=key, owner="ledger", body="box")
        return str(answer.body["sandbox_id"]) if answer.status == 201 else None

    async def _job(self, sandbox: str, mark: str) -> None:
        rng = self.rng
        lines, seconds = rng.randint(0, 4), rng.choice((0.0, 0.0, 0.3, 2.0, 6.0, 30.0))
        self.lines[mark] = lines
        text = command(
            mark, ledger=f"{self.rig.place}/ledger", sandbox=sandbox, lines=lines, seconds=seconds,
            code=rng.choice((0, 0, 3)), private=private(self.rig),
        )  # fmt: skip
        asked = {"sandbox_id": sandbox, "command": text, "timeout": JOB_TIMEOUT}
        self.following += 1
        try:
            await self._run_once(asked, mark)
        finally:
            self.following -= 1

    async def _run_once(self, asked: Mapping[str, Any], mark: str) -> None:
        rng, sandbox = self.rng, asked["sandbox_id"]
        submitted = {"key": f"{mark}-k", "mark": mark, "sandbox": sandbox}
        answer = await self._until_answered("/v1/exec-jobs", asked, "submit", **submitted)
        if answer.status != 202:
            return
        self.ids.append(answer.command_id)
        if rng.random() < 0.15:
            await self._ask("DELETE", f"/v1/exec-jobs/{answer.command_id}", "cancel", of=answer.command_id)
        if rng.random() < 0.2:
            # A late retry, as of a caller that did not hear the first answer.
            await self._ask("POST", "/v1/exec-jobs", "submit", json=asked, **submitted)
        await self.follow(answer.command_id)

    async def follow(self, id: str) -> str | None:
        """Polls a job until it is over; its state."""
        cursor, output = None, ""
        while self.recorder.now() < self.deadline:
            wait = self.rng.choice((0, 2, 10))
            query = f"?wait={wait}" + (f"&cursor={cursor}" if cursor else "")
            answer = await self._ask("GET", f"/v1/exec-jobs/{id}{query}", "output", of=id, before=output)
            if answer.status == 200:
                said = answer.body
                output = said["output"] if said["replace"] else output + said["output"]
                cursor = said["cursor"]
                if cursor is None and said["state"] in TERMINAL:
                    return str(said["state"])
            elif not answer.passing:
                return None
            await asyncio.sleep(0.05 if answer.status == 200 and wait else self.rng.uniform(0.2, 0.8))
        return None

    async def look_at(self, id: str) -> None:
        """One look at somebody's job or sandbox."""
        path = "exec-jobs" if id.startswith("cmd_") else "sandboxes"
        await self._ask("GET", f"/v1/{path}/{id}", "status", of=id)

    async def list(self) -> None:
        """One look at its tenant's list of jobs."""
        await self._ask("GET", "/v1/exec-jobs?page_size=100", "list")

    async def _until_answered(self, path: str, asked: Mapping[str, Any], what: What, **more: Any) -> Answer:
        while True:
            answer = await self._ask("POST", path, what, json=asked, **more)
            if not answer.passing or self.recorder.now() > self.deadline:
                return answer
            await asyncio.sleep(self.rng.uniform(0.1, 1.0))

    async def _ask(self, method: str, path: str, what: What, **more: Any) -> Answer:
        replica = self.rng.choice(self.rig.replicas)
        # Once there is no trouble any more, nobody hangs up.
        patience = 60.0 if self.stop.is_set() else self.rng.choice((0.1, 1.0, 30.0, 30.0))
        return await self.recorder.ask(
            self.rig.caller, method, f"{replica.url}{path}", what=what, who=self.name, tenant=self.tenant,
            headers={"Authorization": f"Bearer {key_of(self.tenant)}"}, patience=patience, replica=replica.name, **more,
        )  # fmt: skip


def private(rig: Rig) -> bool:
    """Its sandboxes have file systems of their own, which may be replaced."""
    return rig._engine is not None and rig.engine.private
