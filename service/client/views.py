"""What the handles of both clients have in common: what they know of a sandbox and of a job."""

# ruff: noqa: TID252
from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NoReturn, Self, TypeVar

import msgspec

from ..messages import MAX_WAIT, Encoding, Job, JobState, Sandbox, Stream
from .arguments import printable, seconds, text
from .calls import Calls
from .following import Follower
from .output import Joined, Sink
from .results import JobRead, JobResult, result_of_job, result_of_streams
from .rules import Deadline

M = TypeVar("M", Job, Sandbox)

RUN_TIMEOUT = 60
"""Seconds after which a command of ``run()`` is killed, unless told otherwise."""
MAX_OUTPUT = 64 * 1024 * 1024
"""Bytes that ``run()`` takes of a command's two outputs together, unless told otherwise."""
TURN = 2
"""Seconds that a read of one stream waits for more where both are followed at once."""


class Unpickled:
    """Belongs to this process. Copies share its client."""

    _elsewhere = ""
    """What to do instead of sending it to another process."""

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        article = "an" if name.startswith("A") else "a"
        raise TypeError(f"{article} {name} can't be pickled: {self._elsewhere}")

    def __copy__(self) -> Self:
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = self.__copy__()
        # Messages may change when more is seen; all else is shared or never changes.
        for name, value in vars(made).items():
            if isinstance(value, msgspec.Struct):
                setattr(made, name, copy.deepcopy(value, memo))
        return made


class ClientView(Unpickled):
    """A client holds connections and no state: a copy is the client itself."""

    _elsewhere = "make one in each process"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class Handle(Unpickled, Generic[M]):
    """What the handles of a sandbox and of a job have in common. ``info`` is the message with its state."""

    def __init__(self, calls: Calls, id: str, info: M | None = None, *, replayed: bool = False) -> None:
        self._calls = calls
        self._id = id
        self._info: M | None = info
        self._replayed = replayed
        self._idempotency_key: str | None = None

    @property
    def info(self) -> M | None:
        """What it was when last seen; None if no request was made yet. A job's is kept up to date while it is
        followed.
        """
        return self._info

    @property
    def replayed(self) -> bool:
        """Made before, by an earlier request with the same key; by a lost try of this one, perhaps."""
        return self._replayed

    @property
    def idempotency_key(self) -> str | None:
        """The key that it was made with; None for the handle of something that was only named."""
        return self._idempotency_key

    def __repr__(self) -> str:
        state = self._info.state if self._info else "not seen yet"
        return f"<{type(self).__name__} {printable(self._id)} {state}>"


class JobView(Handle[Job]):
    """What is known of a job."""

    _elsewhere = "send its id, and take client.job(id) there"

    def __init__(self, calls: Calls, command_id: str, info: Job | None = None, *, replayed: bool = False) -> None:
        super().__init__(calls, command_id, info, replayed=replayed)
        self._logs_ok: bool | None = None
        self._output_complete = False
        self._skipped_bytes = 0
        self._cursor: str | None = None

    @property
    def id(self) -> str:
        """The ``command_id``. Write it down: ``client.job(id)`` gets back to the job, tomorrow too."""
        return self._id

    @property
    def state(self) -> JobState | None:
        """The state when last seen; None if no request was made yet."""
        return self._info.state if self._info else None

    @property
    def logs_ok(self) -> bool | None:
        """Whether the last read got at the output; None before the first."""
        return self._logs_ok

    @property
    def output_complete(self) -> bool:
        """Whether the output was seen to be whole and ended."""
        return self._output_complete

    @property
    def skipped_bytes(self) -> int:
        """Bytes of output that are no longer kept, as far as reads have met them."""
        return self._skipped_bytes

    @property
    def cursor(self) -> str | None:
        """The place after what ``stream()`` or ``stream_bytes()`` gave last: pass it to go on from there.

        The end is such a place too: from there, nothing more comes.
        """
        return self._cursor

    def _note(self, read: JobRead, skipped_bytes: int) -> None:
        self._info = read.job
        self._logs_ok = read.logs_ok
        self._output_complete = self._output_complete or read.output_complete
        self._skipped_bytes = skipped_bytes

    @property
    def _apart(self) -> bool:
        """Its streams are known to be apart."""
        return self._info is not None and self._info.kind == "job" and self._info.streams == "apart"

    def _follower(
        self,
        encoding: Encoding,
        timeout: float | None,
        cursor: str | None = None,
        *,
        follow: bool = True,
        stream: Stream | None = None,
        most_wait: int = MAX_WAIT,
    ) -> Follower:
        timeout = seconds(timeout, "timeout")
        if timeout is None and not follow:
            timeout = self._calls.terms.deadline  # a look, not a wait
        before = 0 if cursor is None else self._skipped_bytes
        return Follower(
            self._calls.terms,
            self._id,
            encoding=encoding,
            deadline=Deadline(self._calls.terms, timeout),
            cursor=cursor,
            job_timeout=self._info.timeout if self._info else None,
            long_poll=follow,
            stream=stream,
            most_wait=most_wait,
            note=lambda read, skipped: self._note(read, before + skipped),
        )

    def _result(self, follower: Follower, sink: Sink, text: str, *, check: bool) -> JobResult:
        assert follower.last is not None
        result = result_of_job(follower.last, text, sink.skipped_bytes)
        return result.check() if check else result

    @staticmethod
    def _result_of_both(followers: Sequence[Follower], sinks: Sequence[Joined], *, check: bool) -> JobResult:
        reads = [follower.last for follower in followers if follower.last is not None]
        skipped = sum(sink.skipped_bytes for sink in sinks)
        result = result_of_streams(reads, [sink.text for sink in sinks], skipped)
        return result.check() if check else result


class SandboxView(Handle[Sandbox]):
    """What is known of a sandbox."""

    _elsewhere = "send its id, and take client.sandbox(id) there"

    @property
    def id(self) -> str:
        """The ``sandbox_id``."""
        return self._id

    def _body(
        self,
        command: str | Sequence[str],
        timeout: int | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
        metadata: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        return {"sandbox_id": self._id, **command_body(command, timeout, cwd, env, metadata)}


def command_body(
    command: str | Sequence[str],
    timeout: int | None,
    cwd: str | None,
    env: Mapping[str, str] | None,
    metadata: Mapping[str, str] | None,
) -> dict[str, Any]:
    """The fields of a command, as they are sent."""
    words = list(command) if isinstance(command, list | tuple) else None
    return {
        "command": None if words is not None else text(command, "command"),
        "argv": words,
        "timeout": timeout,
        "cwd": cwd,
        "env": None if env is None else dict(env),
        "metadata": None if metadata is None else dict(metadata),
    }
