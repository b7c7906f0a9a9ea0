"""``map_tasks()``, asynchronous: each task in a sandbox of its own, from the sandbox's making to its deletion."""

# ruff: noqa: TID252  (relative, so that the client also works under the name that `oncebox.py` gives it)
from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from ...errors import OnceboxError
from ..async_pool import AsyncPool
from ..results import JobResult
from ..tasks import (
    END,
    OVER,
    STEP_LABEL,
    TASK_LABEL,
    Journal,
    TaskEnd,
    TaskNames,
    TaskResult,
    command_of,
    distinct,
    ended_with,
    ending,
    labels,
    over,
)
from .files import AsyncFiles
from .job import AsyncJob
from .sandbox import AsyncSandbox

if TYPE_CHECKING:
    from .client import AsyncClient

T = TypeVar("T")


class AsyncTaskRun(Generic[T]):
    """What the function of ``map_tasks()`` is called with: one task, and the sandbox that was made for it.

    A command that is run here has a key, made from the map's key, the task and ``step``: when the map is run again, a
    command that ran is not run again, its result is fetched. So the function calls the same steps each time; what it
    does outside of the sandbox may happen again.
    """

    def __init__(self, names: TaskNames, name: str, task: T, sandbox: AsyncSandbox) -> None:
        self.task = task
        """As it was given to ``map_tasks()``."""
        self.sandbox = sandbox
        """Its sandbox. Commands that are run directly on it have no key of the map's."""
        self._names = names
        self._name = name
        self._steps = 0

    @property
    def files(self) -> AsyncFiles:
        """The sandbox's files."""
        return self.sandbox.files

    async def submit(
        self,
        command: str | Sequence[str],
        *,
        step: str | None = None,
        metadata: Mapping[str, str] | None = None,
        **more: Any,
    ) -> AsyncJob:
        """Starts a command as a job, once for this task and step.

        Args:
            step: a name for it, of its own within the task; None: the number of the call.
            more: as of ``Sandbox.submit()``, as all else.
        """
        self._steps += 1
        step = f"#{self._steps}" if step is None else step
        return await self.sandbox.submit(
            command,
            metadata=labels(self._names.of_step(self._name, step), metadata),
            idempotency_key=self._names.step_key(self._name, step),
            **more,
        )

    async def run(
        self, command: str | Sequence[str], *, step: str | None = None, check: bool = False, **more: Any
    ) -> JobResult:
        """Runs a command as :meth:`submit` does, and waits for its result; ``check`` as in ``Job.result()``."""
        job = await self.submit(command, step=step, **more)
        return await job.result(check=check)


class AsyncTaskMap(Generic[T]):
    """One ``map_tasks()``. What order matters in, for each task:

    1. Its end is looked up in the journal, else in the record, before a sandbox is made.
    2. Its end is in the record, and then in the journal, before its sandbox is deleted.
    3. A sandbox of a task whose end is known is deleted, in case the process ended between these two.
    """

    def __init__(
        self,
        client: AsyncClient,
        function: Callable[[AsyncTaskRun[T]], Any] | str | Iterable[str],
        tasks: Iterable[T],
        *,
        key: str,
        journal: Any,
        concurrency: int,
        sandbox: Mapping[str, Any],
        progress: Callable[[int, int], object] | None,
    ) -> None:
        self._client = client
        self._function = function if callable(function) else None
        self._command = "" if callable(function) else command_of(function)
        self._tasks = list(distinct(tasks))
        self._names = TaskNames(key)
        self._journal = Journal(journal, self._names)
        self._concurrency = concurrency
        self._sandbox = dict(sandbox)
        self._progress = progress
        self._recorded: dict[str, AsyncJob] = {}
        self._done = 0

    async def results(self) -> AsyncIterator[TaskResult[T]]:
        """What came of each task, in the order in which it comes."""
        if any(self._journal.end(name) is None for name, _ in self._tasks):
            await self._read_record()
        async for result in AsyncPool(self._work, self._tasks, self._concurrency).results():
            self._done += 1
            if self._progress is not None:
                self._progress(self._done, len(self._tasks))
            yield result

    async def _read_record(self) -> None:
        """The ends that earlier runs have left, in one pass over the map's jobs."""
        async for job in self._client.jobs(metadata=self._names.of_all, page_size=200):
            if job.info is not None and job.info.metadata.get(STEP_LABEL) == END and job.state in OVER:
                self._recorded.setdefault(job.info.metadata[TASK_LABEL], job)

    async def _work(self, named: tuple[str, T]) -> TaskResult[T]:
        name, task = named
        try:
            known = self._journal.end(name) or await self._end_in_record(name)
            end = known or await self._worked_on(name, task)
            await self._remove(end.sandbox_id)
            value = self._result(end.value)
            return TaskResult(task=task, result=value, sandbox_id=end.sandbox_id, replayed=known is not None)
        except Exception as error:  # noqa: BLE001  (a failed task stops no other)
            return TaskResult(task=task, error=error)

    async def _end_in_record(self, name: str) -> TaskEnd | None:
        job = self._recorded.get(name)
        return None if job is None else self._noted(name, await job.result())

    async def _worked_on(self, name: str, task: T) -> TaskEnd:
        metadata = labels(self._names.of_task(name), self._sandbox.get("metadata"))
        sandbox = await self._client.create_sandbox(
            **{**self._sandbox, "metadata": metadata}, idempotency_key=self._names.sandbox_key(name)
        )
        run = AsyncTaskRun(self._names, name, task, sandbox)
        try:
            command = self._command
            if self._function is not None:
                command = ending(await self._client._driver.settle(self._function(run)))
            return self._noted(name, over(await run.run(command, step=END)))
        except Exception as error:
            if not (isinstance(error, OnceboxError) and error.retryable):  # else the next run of the map goes on in it
                await self._remove(sandbox.id)
            raise

    def _noted(self, name: str, last: JobResult) -> TaskEnd:
        value = msgspec.to_builtins(last) if self._function is None else ended_with(last)
        end = TaskEnd(task=name, value=value, sandbox_id=last.sandbox_id)
        self._journal.note(end)
        return end

    def _result(self, value: Any) -> Any:
        return msgspec.convert(value, JobResult) if self._function is None else value

    async def _remove(self, sandbox_id: str | None) -> None:
        if sandbox_id is not None:
            await self._client._driver.run(self._client._calls.remove_sandbox(sandbox_id))
