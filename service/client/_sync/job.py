# Generated from service/client/_async by docs/write_sync_client.py; do not edit.
"""The synchronous handle of a job."""

# ruff: noqa: TID252  (relative, so that the client also works under the name that `oncebox.py` gives it)
from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import IO, Any, TextIO

from ...errors import InvalidRequest
from ...messages import MAX_WAIT, Encoding, Stream
from ...messages import Job as JobInfo
from ..calls import Calls, wants_stream
from ..driver import SyncDriver
from ..following import Follower
from ..output import Joined, Sink, Unsaid, opened, sink_for
from ..results import JobPart, JobResult, part_of
from ..views import TURN, JobView


class Job(JobView):
    """A job: a command that runs in a sandbox, whoever is connected.

    Made by ``sandbox.submit()``, or from an id by ``client.job()``, which makes no request. Every method can
    be called again at any time, from any process: the job is on the server, this is only its name. All of
    them carry on through dropped connections, restarted servers and gateways' error pages.
    """

    def __init__(
        self,
        calls: Calls,
        driver: SyncDriver,
        command_id: str,
        info: JobInfo | None = None,
        *,
        replayed: bool = False,
    ) -> None:
        super().__init__(calls, command_id, info, replayed=replayed)
        self._driver = driver

    def status(self) -> JobInfo:
        """Asks for the job as it is now.

        Raises:
            JobNotFound: the service does not know the id; the command may have run all the same.
        """
        timeout = self._info.timeout if self._info else None
        read = self._driver.run(self._calls.status(self._id, timeout=timeout, apart=self._apart))
        self._note(read, max(self._skipped_bytes, read.skipped_bytes))
        return read.job

    def stream(
        self,
        stream: Stream | None = None,
        *,
        cursor: str | None = None,
        follow: bool = True,
        timeout: float | None = None,
    ) -> Iterator[str]:
        """The output as text, as it comes, until the job is over and its output read to the end.

        stdout and stderr are merged, unless the job was submitted with ``stderr="apart"``: then ``stream`` says which.
        Characters are never cut; bytes that are not UTF-8 are U+FFFD. Where the
        service must replace what it gave before (rare: a log that was lost and read anew), the replacement's
        part beyond what was given already is given, if it begins alike, else all of it; ``result()`` has it
        right in every case.

        Args:
            cursor: go on after an earlier ``job.cursor``, of any handle in any process; None: from the start.
            follow: False: only what is there now.
            timeout: seconds after which :class:`DeadlineExceeded` is raised; None: never, but at the client's own
                deadline without ``follow``.

        Raises:
            JobNotFound: the service does not know the id.
            DeadlineExceeded: the job is not over after ``timeout`` seconds.
        """
        unsaid: Unsaid[str] = Unsaid()
        follower = self._follower(Encoding.UTF8, timeout, cursor, follow=follow, stream=stream)
        while not follower.done:
            piece = self._driver.run(follower.step())
            self._cursor = follower.cursor
            if piece is not None and (text := unsaid.beyond(piece.text(), replaces=piece.replace)):
                yield text
        if text := unsaid.rest() or "":
            yield text

    def stream_bytes(
        self,
        stream: Stream | None = None,
        *,
        cursor: str | None = None,
        follow: bool = True,
        timeout: float | None = None,
    ) -> Iterator[bytes]:
        """The output as the bytes that the command wrote; otherwise as :meth:`stream`."""
        unsaid: Unsaid[bytes] = Unsaid()
        follower = self._follower(Encoding.BASE64, timeout, cursor, follow=follow, stream=stream)
        while not follower.done:
            piece = self._driver.run(follower.step())
            self._cursor = follower.cursor
            if piece is not None and (data := unsaid.beyond(piece.data(), replaces=piece.replace)):
                yield data
        if data := unsaid.rest() or b"":
            yield data

    def read(
        self,
        stream: Stream | None = None,
        *,
        cursor: str | None = None,
        limit: int | None = None,
        wait: float = 0,
    ) -> JobPart:
        """One part of the output, and the job as it stands, by one request.

        Args:
            stream: which, of a job that was submitted with ``stderr="apart"``; each has cursors of its own.
            cursor: of an earlier part; None: from the start.
            limit: bytes, at most 8 MiB; None: 1 MiB.
            wait: seconds to wait for news after ``cursor``, at most 30.

        Raises:
            JobNotFound: the service does not know the id.
            InvalidRequest: its streams are apart, and ``stream`` is missing; or they are not, and it is given.
        """
        read = self._driver.run(self._calls.part(self._id, stream=stream, cursor=cursor, limit=limit, wait=wait))
        self._note(read, self._skipped_bytes)
        return part_of(read)

    def result(self, *, check: bool = False, timeout: float | None = None) -> JobResult:
        """Waits until the job is over, and returns its end and its whole output.

        Where its streams are apart, ``stdout`` and ``stderr`` have them. A job that was never started (``failed``) or
        whose end nobody knows (``lost``) is a result too.

        Args:
            check: raise unless the command exited with 0 and its output is whole (``result.ok``).
            timeout: seconds to wait; None: as long as it takes.

        Raises:
            CommandFailed: only with ``check``; its ``result`` is what would have been returned.
            JobNotFound: the service does not know the id.
            DeadlineExceeded: the job is not over after ``timeout`` seconds. It goes on.
        """
        if not self._apart:
            joined = Joined()
            follower = self._follower(joined.encoding, timeout)
            try:
                self._drain(follower, joined)
                return self._result(follower, joined, joined.text, check=check)
            except InvalidRequest as error:
                if not wants_stream(error):
                    raise
        return self._both(Joined(), Joined(), timeout, live=False, check=check)

    def _both(self, stdout: Joined, stderr: Joined, timeout: float | None, *, live: bool, check: bool) -> JobResult:
        """Both streams to their ends: one after the other, or, where they are shown ``live``, in turns."""
        sinks = (stdout, stderr)
        wait = TURN if live else MAX_WAIT
        followers = (
            self._follower(stdout.encoding, timeout, stream="stdout", most_wait=wait),
            self._follower(stderr.encoding, timeout, stream="stderr", most_wait=wait),
        )
        while not all(follower.over for follower in followers):
            for follower, sink in zip(followers, sinks, strict=True):
                while not follower.over:
                    piece = self._driver.run(follower.read())
                    if piece is not None:
                        self._driver.settle(sink.take(piece))
                    if live:
                        break
        for sink in sinks:
            self._driver.settle(sink.end())
        return self._result_of_both(followers, sinks, check=check)

    def output_to(
        self,
        target: str | os.PathLike[str] | IO[bytes] | TextIO | Callable[[Any], object],
        *,
        stream: Stream | None = None,
        text: bool = False,
        check: bool = False,
        timeout: float | None = None,
    ) -> JobResult:
        """Waits as :meth:`result` does, but gives the output away as it comes; none is held in memory.

        Args:
            target: a path (written anew), an open file (binary or text), or a function that is called with
                each chunk. Bytes are exact. A file that can seek is right even where output is replaced; for
                all else see :meth:`stream`.
            stream: which, of a job that has them apart.
            text: call the function with text instead of bytes.
            check: as in :meth:`result`.
            timeout: as in :meth:`result`.

        Returns:
            The result, with an empty ``output``.
        """
        if isinstance(target, str | os.PathLike):
            with opened(target) as file:
                return self.output_to(file, stream=stream, check=check, timeout=timeout)
        sink = sink_for(target, text=text)
        follower = self._follower(sink.encoding, timeout, stream=stream)
        self._drain(follower, sink)
        return self._result(follower, sink, "", check=check)

    def cancel(self) -> JobInfo:
        """Asks for the job to be ended. Answers at once; ``result()`` waits for the end.

        A job that is over already stays as it is, which is no error.

        Raises:
            JobNotFound: the service does not know the id.
        """
        self._info = self._driver.run(self._calls.cancel(self._id))
        return self._info

    def _drain(self, follower: Follower, sink: Sink) -> None:
        while (piece := self._driver.run(follower.next())) is not None:
            self._driver.settle(sink.take(piece))
        self._driver.settle(sink.end())
