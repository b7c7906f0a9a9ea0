"""A service that lives in the test: what the command line asks of the SDK's client, and nothing behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import msgspec

from service.errors import JobNotFound, OnceboxError, SandboxNotFound
from service.messages import Job, JobState, Sandbox, SandboxState

REF = "0123456789abcdef0123456789abcdef"
COMMAND_ID = f"cmd_c2I_{REF}"


class FakeJob:
    """A job whose output and end the test decides. It ends by itself, or when it is cancelled (``hangs``)."""

    def __init__(self, command_id: str = COMMAND_ID, *, chunks: tuple[bytes, ...] = (), **end: Any) -> None:
        self.id = command_id
        self.chunks = list(chunks)
        self.end = {"state": JobState.EXITED, "exit_code": 0, **end}
        self.info: Job | None = Job(command_id=command_id, sandbox_id="sb", state=JobState.PENDING, command="c")
        self.error: OnceboxError | None = None
        self.replayed = False
        self.skipped_bytes = 0
        self.output_complete = True
        self.cursor: str | None = None
        self.started_at: str | None = None
        self.hangs = False
        self.cancels = 0
        self.given = asyncio.Event()
        """All chunks were taken."""
        self._cancelled = asyncio.Event()

    @property
    def state(self) -> JobState | None:
        return self.info.state if self.info else None

    async def stream_bytes(
        self, stream: str | None = None, *, cursor: str | None = None, follow: bool = True
    ) -> AsyncIterator[bytes]:
        self.cursor = cursor
        assert self.info is not None
        self.info = msgspec.structs.replace(self.info, state=JobState.RUNNING)
        for number, chunk in enumerate(self.chunks):
            yield chunk
            self.cursor = f"cursor{number}"
        self.given.set()
        if self.error:
            raise self.error
        if self.hangs and follow:
            await self._cancelled.wait()
        self.info = msgspec.structs.replace(self.info, **self.end)

    async def status(self) -> Job:
        if self.error:
            raise self.error
        assert self.info is not None
        self.info = msgspec.structs.replace(self.info, **self.end)
        return self.info

    async def cancel(self) -> Job:
        if self.error:
            raise self.error
        self.cancels += 1
        self.end = {"state": JobState.CANCELLED, "exit_code": None}
        self._cancelled.set()
        assert self.info is not None
        return self.info


class FakeSandbox:
    """A sandbox that gives the service's one job to whoever submits."""

    def __init__(self, service: FakeService, sandbox_id: str, **fields: Any) -> None:
        self.id = sandbox_id
        self.info = Sandbox(sandbox_id=sandbox_id, state=SandboxState.RUNNING, ready=True, **fields)
        self._service = service

    async def submit(self, command: str, **fields: Any) -> FakeJob:
        self._service.submitted.append({"sandbox": self.id, "command": command, **fields})
        if self._service.submit_gate:
            await self._service.submit_gate.wait()
        return self._service.job_to_come

    async def refresh(self) -> Sandbox:
        return self._acted("show")

    async def renew(self, timeout: int) -> Sandbox:
        return self._acted("renew", timeout)

    async def pause(self) -> Sandbox:
        return self._acted("pause")

    async def resume(self) -> Sandbox:
        return self._acted("resume")

    def _acted(self, *what: Any) -> Sandbox:
        if self.id not in self._service.sandboxes_by_id:
            raise SandboxNotFound("sandbox not known here")
        self._service.acts.append((self.id, *what))
        return self.info

    async def delete(self) -> None:
        if self.id not in self._service.sandboxes_by_id:
            raise SandboxNotFound("sandbox not known here")
        self._service.deleted.append(self.id)


class FakeService:
    """What the test sets up and looks at."""

    current: ClassVar[FakeService]

    def __init__(self) -> None:
        self.job_to_come = FakeJob()
        self.jobs_by_id: dict[str, FakeJob] = {}
        self.sandboxes_by_id: dict[str, FakeSandbox] = {}
        self.created: list[dict[str, Any]] = []
        self.submitted: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.acts: list[tuple[Any, ...]] = []
        self.asked: list[dict[str, Any]] = []
        self.error: OnceboxError | None = None
        self.submit_gate: asyncio.Event | None = None
        self.create_gate: asyncio.Event | None = None
        """What the first creation waits for, once it is known to the service."""
        self.made_by_key: dict[str | None, FakeSandbox] = {}


class FakeClient:
    """Takes the place of ``service.client.AsyncClient``."""

    def __init__(self, url: str, *, api_key: str, deadline: float) -> None:
        self.service = FakeService.current

    async def __aenter__(self) -> FakeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def create_sandbox(self, **fields: Any) -> FakeSandbox:
        if self.service.error:
            raise self.service.error
        key = fields.get("idempotency_key")
        if key in self.service.made_by_key:
            return self.service.made_by_key[key]
        self.service.created.append(fields)
        sandbox = FakeSandbox(self.service, f"new{len(self.service.created)}", image=fields.get("image"))
        self.service.sandboxes_by_id[sandbox.id] = self.service.made_by_key[key] = sandbox
        if self.service.create_gate:
            await self.service.create_gate.wait()
        return sandbox

    def sandbox(self, sandbox_id: str) -> FakeSandbox:
        return self.service.sandboxes_by_id.get(sandbox_id) or FakeSandbox(self.service, sandbox_id)

    def job(self, command_id: str) -> FakeJob:
        if command_id in self.service.jobs_by_id:
            return self.service.jobs_by_id[command_id]
        unknown = FakeJob(command_id)
        unknown.error = JobNotFound("job not known here")
        return unknown

    async def jobs(self, **query: Any) -> AsyncIterator[FakeJob]:
        self.service.asked.append(query)
        for job in self.service.jobs_by_id.values():
            yield job

    async def sandboxes(self, **query: Any) -> AsyncIterator[FakeSandbox]:
        self.service.asked.append(query)
        for sandbox in self.service.sandboxes_by_id.values():
            yield sandbox
