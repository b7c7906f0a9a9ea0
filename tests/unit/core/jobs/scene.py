"""A sandbox with one command, as the parts that look into it see it: each answer as a case has it."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from service.core import records
from service.core.fence.protocol import Boot, End, Fence, Look, Voided
from service.core.model import identity
from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.messages import SandboxState
from service.ports.engine import CommandStatus, EngineError, FileMissing, FileRange, SandboxInfo, Unclear
from service.ports.store import Record

T = TypeVar("T")

ID = identity.command_id("s", identity.job_ref("00"))
TOKEN = identity.token_of(ID, 1)
BODY = JobBody(
    tenant="t", sandbox_id="s", fingerprint="f", command="x", timeout=100, submitted_at=1000.0, dispatched_at=1000.0,
    boot="a 7", engine_id="ours",
)  # fmt: skip
OURS = Fence(kind="run", fingerprint="f", log="/tmp/ours.output")
THEIRS = Fence(kind="run", fingerprint="g", timeout=9, log="/tmp/theirs.output")
VOID, OTHER_VOID = Fence(kind="void", boot="a 7"), Fence(kind="void", boot="b 7")
EMPTY, DAMAGED = Fence(kind="empty"), Fence(kind="damaged")
SILENT = Unclear("no answer")
"""What is raised where nobody answers."""


def body(**changes: Any) -> JobBody:
    return msgspec.structs.replace(BODY, **changes)


def record(
    state: ClaimState = ClaimState.ACCEPTED, what: JobBody = BODY, *, now: float = 1001.0, **changes: Any
) -> Record:
    """``now``: Unix seconds; the deadline is at 1100."""
    made = Record(
        id=ID, state=state, epoch=1, attempt=1, revision=3, lease_until=0, token="t", owner="me", cancel=False,
        body=records.encode(what), now=round(now * 1000),
    )  # fmt: skip
    return msgspec.structs.replace(made, **changes)


def status(*, running: bool = False, code: int | None = 0, content: str = TOKEN, **more: Any) -> CommandStatus:
    times = {"started_at": 1000.5, "finished_at": None if running else 1000.9}
    return CommandStatus(
        id="ours", content=content, running=running, exit_code=None if running else code, **{**times, **more}
    )


def look(found: Fence | None = None, *, alive: bool | None = False, start: int = 7) -> Look:
    processes = None if alive is None else (1,) if alive else ()
    return Look(Boot("a 7", 7), start, processes, found)


class Scene(msgspec.Struct, kw_only=True):
    """Answers of the engine and of the fence's commands; one that is an exception is raised. ``asked``: in order."""

    fence: Fence | EngineError | None = None
    voided: Voided | EngineError = SILENT
    seen: Look | EngineError = SILENT
    ended: End = "ended"
    status_: CommandStatus | EngineError = SILENT
    sandbox: SandboxState | EngineError = SandboxState.RUNNING
    output: bytes | EngineError = b""
    stderr: bytes | EngineError = b""
    interrupted: EngineError | None = None
    asked: list[str] = []
    charged: int = 0
    kept: list[str] = []

    def _say(self, name: str, answer: T | Exception) -> T:
        self.asked.append(name)
        if isinstance(answer, Exception):
            raise answer
        return answer

    # -- fences

    async def read(self, sandbox_id: str, token: str) -> Fence | None:
        assert (sandbox_id, token) == ("s", TOKEN)
        return self._say("fence", self.fence)

    async def void(self, sandbox_id: str, token: str, boot: str) -> Voided:
        assert (sandbox_id, token) == ("s", TOKEN)
        return self._say("void", self.voided)

    async def look(self, sandbox_id: str, token: str) -> Look:
        assert (sandbox_id, token) == ("s", TOKEN)
        return self._say("look", self.seen)

    async def end(self, sandbox_id: str, token: str) -> End:
        return self._say("end", self.ended)

    # -- the engine

    async def status(self, sandbox_id: str, command: str) -> CommandStatus:
        return self._say("status", self.status_)

    async def interrupt(self, sandbox_id: str, command: str) -> None:
        self._say("interrupt", self.interrupted)

    async def get_sandbox(self, sandbox_id: str) -> SandboxInfo:
        return SandboxInfo(id=sandbox_id, state=self._say("sandbox", self.sandbox))

    def output_path(self, command: str, stream: str = "output") -> str:
        return f"/tmp/{command}.{stream}"

    async def read_file(self, sandbox_id: str, path: str, offset: int, length: int) -> FileRange:
        data = self._say("file", self.stderr if path.endswith("stderr") else self.output)
        return FileRange(offset, data[offset : offset + length], len(data))

    async def log(self, sandbox_id: str, command: str, offset: int) -> FileRange:
        raise FileMissing("no log")

    # -- the pace, and the sandbox's expiry

    def charge(self, reads: int = 1) -> None:
        self.charged += reads

    async def keep(self, job: JobBody) -> None:
        self.kept.append(job.sandbox_id)
