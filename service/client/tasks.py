"""``map_tasks()``: what is known of each task before and after it was worked on. Without requests."""

# ruff: noqa: TID252
from __future__ import annotations

import hashlib
import json
import os
import shlex
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from ..errors import OnceboxError
from ..messages import JobState
from .arguments import plain
from .calls import checked_key
from .results import JobResult

T = TypeVar("T")

MAP_LABEL = "oncebox-map"
TASK_LABEL = "oncebox-task"
STEP_LABEL = "oncebox-step"
BAR = 40
"""Characters of the progress bar."""
END = "end"
"""The step whose output is what the task's function returned."""
KEY_LIMIT = 200
"""Characters of a map's key, so that a task's and a step's part fit behind it."""
OVER = (JobState.EXITED, JobState.TIMED_OUT)
RESULT_LIMIT = 64 * 1024
"""Bytes of JSON that a task's function may return: what the service records of a job's output holds it."""


class TaskResult(msgspec.Struct, Generic[T], kw_only=True, frozen=True):
    """What came of one task: a ``result``, or the ``error`` that prevented one."""

    task: T
    """As it was given."""
    result: Any = None
    """What the function returned (as JSON has it: a tuple comes back as a list), or the command's ``JobResult``."""
    error: Exception | None = None
    sandbox_id: str | None = None
    """The sandbox that it was worked on in."""
    replayed: bool = False
    """An earlier run of the map had worked on it to the end."""

    def unwrap(self) -> Any:
        """The result. Raises ``error`` where there is none."""
        if self.error is not None:
            raise self.error
        return self.result


class TaskEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a task ended, as the journal and the record have it."""

    task: str
    """Its digest."""
    value: Any = None
    sandbox_id: str | None = None


def digest(value: Any) -> str:
    """A name for ``value`` that fits into a label: the same for the same value in every run.

    Raises:
        InvalidRequest: it is neither text nor what JSON holds.
    """
    told = json.dumps(plain(value, "task"), sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(told.encode()).hexdigest()[:32]


class TaskNames:
    """The keys and labels of one map.

    Raises:
        InvalidIdempotencyKey, ValueError: ``key`` can't begin a key.
    """

    def __init__(self, key: str) -> None:
        if len(checked_key(key)) > KEY_LIMIT:
            raise ValueError(f"the key of a map is at most {KEY_LIMIT} characters")
        self._key = key
        self._map = hashlib.sha256(key.encode()).hexdigest()[:32]

    @property
    def of_all(self) -> dict[str, str]:
        """The label that every sandbox and job of the map has."""
        return {MAP_LABEL: self._map}

    def of_task(self, task: str) -> dict[str, str]:
        """The labels of a task's sandbox."""
        return {**self.of_all, TASK_LABEL: task}

    def of_step(self, task: str, step: str) -> dict[str, str]:
        """The labels of a step's job."""
        return {**self.of_task(task), STEP_LABEL: step if step == END else digest(step)}

    def sandbox_key(self, task: str) -> str:
        """The key of a task's sandbox."""
        return f"{self._key}-{task}"

    def step_key(self, task: str, step: str) -> str:
        """The key of a step's job."""
        return f"{self._key}-{task[:16]}-{digest(step)[:16]}"


def distinct(tasks: Iterable[T]) -> Iterator[tuple[str, T]]:
    """Each task with its digest.

    Raises:
        ValueError: one comes twice.
    """
    seen: set[str] = set()
    for task in tasks:
        name = digest(task)
        if name in seen:
            raise ValueError(f"a task comes twice: {task!r}"[:300])
        seen.add(name)
        yield name, task


def ending(value: Any) -> str:
    """The command whose output is ``value`` in JSON.

    Raises:
        ValueError: it is not what JSON holds, or too long for the record.
    """
    try:
        told = msgspec.json.encode(value).decode()
    except (TypeError, msgspec.MsgspecError) as error:
        raise ValueError(f"a task's function returns what JSON holds: {error}") from None
    if len(told.encode()) > RESULT_LIMIT:
        raise ValueError(f"a task's function returns at most {RESULT_LIMIT} bytes of JSON; files hold more")
    return f"printf %s {shlex.quote(told)}"


def ended_with(result: JobResult) -> Any:
    """The value in the output of an ``ending`` that ran.

    Raises:
        OnceboxError: the output is no longer whole.
    """
    if not result.ok:
        raise OnceboxError("the record of the task's end is not whole", command_id=result.command_id)
    return msgspec.json.decode(result.output)


def over(result: JobResult) -> JobResult:
    """``result``, where the command itself came to an end, whatever that was.

    Raises:
        CommandFailed: it never ran, was cancelled, or nobody knows.
    """
    return result if result.state in OVER else result.check()


def command_of(commands: str | Iterable[str]) -> str:
    """Several commands as one, each in a shell of its own, up to the first that fails."""
    return commands if isinstance(commands, str) else " && ".join(f"(\n{each}\n)" for each in commands)


class Journal:
    """Ends of tasks in a file, one line of JSON each; a line that was cut short by a crash is left out.

    Each line is on the disk before the next thing happens. One process at a time.
    """

    def __init__(self, path: str | os.PathLike[str] | None, names: TaskNames) -> None:
        self._path = None if path is None else Path(path)
        self._map = names.of_all[MAP_LABEL]
        self._lock = threading.Lock()
        self._ends = dict(self._read())

    def end(self, task: str) -> TaskEnd | None:
        """How a task ended; None: the journal does not know."""
        return self._ends.get(task)

    def note(self, end: TaskEnd) -> None:
        """Write an end. Raises ``OSError``."""
        if self._path is None:
            return
        line = msgspec.json.encode({"map": self._map, **msgspec.to_builtins(end)}) + b"\n"
        with self._lock, open(self._path, "ab") as file:
            if file.tell() and not _ends_a_line(self._path):
                line = b"\n" + line
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def _read(self) -> Iterator[tuple[str, TaskEnd]]:
        if self._path is None or not self._path.exists():
            return
        for line in self._path.read_bytes().splitlines():
            try:
                found = msgspec.json.decode(line, type=dict[str, Any])
                if found.pop("map", None) == self._map:
                    end = msgspec.convert(found, TaskEnd)
                    yield end.task, end
            except msgspec.MsgspecError:
                continue


def shown_on_stderr(done: int, total: int) -> None:
    """A bar, where stderr is a terminal."""
    if sys.stderr.isatty():
        full = BAR * done // total
        end = "\n" if done == total else ""
        sys.stderr.write(f"\r[{'#' * full}{' ' * (BAR - full)}] {done} of {total}{end}")
        sys.stderr.flush()


def _ends_a_line(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def labels(own: Mapping[str, str], given: Mapping[str, str] | None) -> dict[str, str]:
    """A caller's labels beside the map's own, which count."""
    return {**(given or {}), **own}
