"""The asynchronous client."""

# ruff: noqa: TID252  (relative, so that the client also works under the name that `oncebox.py` gives it)
from __future__ import annotations

import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ...messages import JobState, Resources, SandboxState
from ..arguments import arguments_of, words
from ..async_pool import AsyncPool
from ..calls import Calls, plain_resources
from ..driver import Hooks
from ..inputs import Stdin
from ..mapping import TaskMaker, at_once
from ..results import MapResult
from ..tasks import TaskResult, shown_on_stderr
from ..transport import target
from ..views import ClientView, command_body
from .job import AsyncJob
from .sandbox import AsyncSandbox
from .tasks import AsyncTaskMap, AsyncTaskRun

T = TypeVar("T")


class AsyncClient(ClientView):
    """A client of one Oncebox service. Thread-safe; holds connections, no state.

    Every request is tried again after transient faults (a lost connection, a restarted replica, a gateway's
    error page, 429, 503, an outcome that is not known yet), with the same ``Idempotency-Key``, after a random
    wait that grows from 0.5 s to 15 s or as long as ``Retry-After`` says.

    Args:
        url: of the service; default ``ONCEBOX_URL``, else ``http://127.0.0.1:8700``.
        api_key: default ``ONCEBOX_API_KEY``, else none.
        timeout: seconds without an answer after which a connection counts as dead, on top of what the request
            itself may wait for.
        deadline: seconds in which one request is tried again; None: for ever. Waiting for a job is not one
            request: ``job.result()`` has a timeout of its own.

    Raises:
        ValueError: an argument can't be used.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        timeout: float = 30.0,
        deadline: float | None = 300.0,
        _hooks: Hooks | None = None,
    ) -> None:
        hooks = _hooks or Hooks()
        self._target = target(url, api_key)
        terms = hooks.terms
        terms.patience(timeout, deadline)
        self._calls = Calls(terms)
        self._driver = hooks.async_driver(self._target)

    @property
    def url(self) -> str:
        """The service's URL."""
        return self._target.url

    async def create_sandbox(
        self,
        *,
        image: str | None = None,
        entrypoint: Iterable[str] | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        resources: Resources | Mapping[str, str] | None = None,
        timeout: int | None = None,
        workspace_owner: str | None = None,
        wait_ready: int | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncSandbox:
        """Creates a sandbox, once, however often this is tried with the same key.

        Args:
            image: default: the service's.
            entrypoint: the first process and its arguments; default: one that sleeps.
            env: environment variables of every command.
            metadata: labels to find it by, with ``sandboxes()``.
            resources: ``cpu`` and ``memory`` in the engine's words, such as ``{"cpu": "500m", "memory":
                "4Gi"}``.
            timeout: seconds that it lives, 60 to 86400; None: 3600. ``renew()`` moves the end.
            workspace_owner: whose directories are mounted.
            wait_ready: seconds to wait until commands can run, 0 to 120; None: 30. After that the sandbox is
                returned with ``info.ready`` false.
            idempotency_key: 1 to 255 visible ASCII characters; None: one is made.

        A call without a key that is interrupted or cancelled deletes what it may have created, for up to a minute;
        a second interrupt ends the waiting for that, and not the deletion. With a key of one's own, the sandbox
        stays: the same key leads to it.

        Raises:
            IdempotencyKeyReused, InvalidRequest, EngineRejected, Forbidden: nothing was created.
            OnceboxError: the last failure, when the deadline has passed. The same key is safe to try again.
        """
        body = {
            "image": image,
            "entrypoint": arguments_of(entrypoint, "entrypoint"),
            "env": None if env is None else dict(env),
            "metadata": None if metadata is None else dict(metadata),
            "resources": plain_resources(resources),
            "timeout": timeout,
            "workspace_owner": workspace_owner,
        }
        key = self._calls.terms.new_id() if idempotency_key is None else idempotency_key
        made = await self._driver.run(
            self._calls.create_sandbox(body, wait_ready=wait_ready, key=key),
            clean_up=None if idempotency_key is not None else lambda: self._calls.uncreate_sandbox(body, key=key),
        )
        info = made.message
        sandbox = AsyncSandbox(self._calls, self._driver, info.sandbox_id, info, replayed=made.replayed)
        sandbox._idempotency_key = made.idempotency_key
        return sandbox

    def sandbox(self, sandbox_id: str) -> AsyncSandbox:
        """The handle of a sandbox that exists. Makes no request."""
        return AsyncSandbox(self._calls, self._driver, sandbox_id)

    async def sandboxes(
        self,
        *,
        metadata: Mapping[str, str] | None = None,
        state: str | SandboxState | Iterable[str | SandboxState] | None = None,
        page_size: int | None = None,
    ) -> AsyncIterator[AsyncSandbox]:
        """All sandboxes that match, page by page; each has its ``info``.

        Args:
            metadata: labels that all must match.
            state: one of these.
            page_size: items a request, at most 200.
        """
        states = words(state, "state")
        token: str | None = None
        while True:
            page = await self._driver.run(
                self._calls.sandboxes(metadata=metadata, states=states, page_size=page_size, token=token)
            )
            for info in page.items:
                yield AsyncSandbox(self._calls, self._driver, info.sandbox_id, info)
            token = page.next_page_token
            if token is None:
                return

    def job(self, command_id: str) -> AsyncJob:
        """The handle of a job that was submitted at some time, by anyone. Makes no request."""
        return AsyncJob(self._calls, self._driver, command_id)

    async def jobs(
        self,
        *,
        sandbox_id: str | None = None,
        state: str | JobState | Iterable[str | JobState] | None = None,
        metadata: Mapping[str, str] | None = None,
        kind: str | None = None,
        q: str | None = None,
        page_size: int | None = None,
    ) -> AsyncIterator[AsyncJob]:
        """All jobs that match, newest first, page by page; each has its ``info``.

        Args:
            sandbox_id: those of this sandbox only.
            state: one of these.
            metadata: labels that all must match.
            kind: ``job`` or ``exec``.
            q: part of an id, of the command's first 256 characters, or of a label.
            page_size: items a request, at most 200.
        """
        states = words(state, "state")
        of = {"sandbox_id": sandbox_id, "kind": kind, "q": q}
        token: str | None = None
        while True:
            page = await self._driver.run(
                self._calls.jobs(of, metadata=metadata, states=states, page_size=page_size, token=token)
            )
            for info in page.items:
                yield AsyncJob(self._calls, self._driver, info.command_id, info)
            token = page.next_page_token
            if token is None:
                return

    def map(
        self,
        command: str | Sequence[str],
        sandboxes: Iterable[AsyncSandbox | str] | AsyncIterable[AsyncSandbox | str],
        *,
        concurrency: int = 64,
        key: str | None = None,
        stdin: Stdin | None = None,
        stdin_path: str | None = None,
        user: str | None = None,
        timeout: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[MapResult]:
        """Runs one command as a job in each of many sandboxes, and yields what came of each as it comes.

        A sandbox that fails does not stop the others: its ``MapResult`` has the ``error``. Jobs that were
        started go on when the iteration is left.

        Args:
            command: a text for the sandboxes' shells, or a list: a program and its arguments.
            sandboxes: handles or ids; taken one by one, as there is room. A sandbox that occurs twice gets
                two jobs.
            concurrency: how many jobs are under way at once.
            key: the prefix from which each job's key is made, at most 200 characters. The same prefix,
                command and sandboxes give the same jobs: after the caller died, the same call goes on where
                it was. None: a random one.
            stdin: what each of them reads, as in ``submit()``; it is held in memory.
            stdin_path, user: as in ``submit()``.
            timeout: seconds for each job, as in ``submit()``; like ``cwd``, ``env`` and ``metadata``.

        Raises:
            InvalidIdempotencyKey, InvalidRequest, ValueError: an argument can't be used.
        """
        body = {**command_body(command, timeout, cwd, env, metadata), "user": user}
        tasks = TaskMaker(
            self._calls.terms, key=key, body=body, concurrency=concurrency, stdin=stdin, stdin_path=stdin_path
        )

        async def work(sandbox: AsyncSandbox | str) -> MapResult:
            return await self._driver.run(tasks.task(sandbox).flow(self._calls))

        return AsyncPool(work, sandboxes, concurrency).results()

    def map_tasks(
        self,
        function: Callable[[AsyncTaskRun[T]], Any] | str | Iterable[str],
        tasks: Iterable[T],
        *,
        key: str,
        journal: str | os.PathLike[str] | None = None,
        concurrency: int = 64,
        progress: bool | Callable[[int, int], object] = False,
        **sandbox: Any,
    ) -> AsyncIterator[TaskResult[T]]:
        """Works on each of many tasks in a sandbox of its own, and yields what came of each as it comes.

        For each task a sandbox is made, ``function`` is called with an :class:`AsyncTaskRun` (its task, its sandbox's
        files, its commands), and the sandbox is deleted. A task that fails stops no other: its ``TaskResult`` has the
        ``error``.

        **Killed at any point, and called again with the same key, it goes on**: what is over is answered, from the
        journal or from the service's record, without a sandbox; what runs is followed; commands that ran are not run
        again. A task whose function raised is tried anew. What the function does outside of its sandbox may happen
        again, and so may a task whose sandbox expired; without a journal also one that the service no longer remembers
        (``ONCEBOX_RETENTION``, or Redis lost its data).

        Args:
            function: called for each task (in a thread; of an asynchronous client it may be a coroutine function);
                what it returns is JSON of at most 64 KiB. Or a command, or several: the result is then the
                ``JobResult``.
            tasks: text, numbers, or what else JSON holds, each of them once.
            key: names the map, at most 200 characters.
            journal: a file in which ends are noted, for one process at a time; None: the service's record alone.
            concurrency: how many tasks are under way at once.
            progress: True: a bar on stderr, where that is a terminal; or a function of how many are over and of all.
            sandbox: as of ``create_sandbox()``.

        Raises:
            InvalidIdempotencyKey, InvalidRequest, ValueError: an argument can't be used.
        """
        shown = shown_on_stderr if progress is True else progress or None
        return AsyncTaskMap(
            self,
            function,
            tasks,
            key=key,
            journal=journal,
            concurrency=at_once(concurrency),
            sandbox=sandbox,
            progress=shown,
        ).results()

    async def close(self) -> None:
        """Closes the idle connections. The client can be used again."""
        await self._driver.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"
