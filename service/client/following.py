"""Following a job: polling, cursors, and draining its output to the end, without I/O.

Long polls are enough here: they survive every hop that answers within a minute, and each answer stands alone, so
that a lost one costs nothing. A stream of events would be a second way to the same rules.

The rules:

- The place is a cursor, taken from each answer whose log read succeeded. ``logs_ok: false`` keeps the cursor,
  and the same read is made again.
- A long poll (``wait``) is asked for; where it is honoured, nothing else waits. Where an answer without news
  comes early, the next read waits: 2 s, growing to 15 s, back to 2 s when output or a new state comes.
- A job is over by a terminal state, or a structured ``JOB_NOT_FOUND``, and by nothing else. After a terminal
  state it is read on until the answer says that the output is complete or that no more can be had (a null
  cursor), or, where neither is ever said, until two reads succeeded and brought nothing.
- The end, for which the service knows no cursor, is a place too: ``END``. A job that never started has none, since a
  retry with its key starts it.
"""

# ruff: noqa: TID252
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from urllib.parse import urlencode

from ..errors import InvalidRequest, JobNotFound
from ..messages import MAX_WAIT, Encoding, JobState, Stream
from .answers import Fault, decoded, fault_of, unreadable
from .arguments import text
from .calls import STATUS_LIMIT, job_path
from .errors import DeadlineExceeded
from .output import Piece
from .results import JobRead
from .rules import Deadline, Terms, Tries, ask, pause
from .steps import Answer, Flow, Request

END = "end"
"""The cursor behind everything that a finished job has printed. Never sent."""
POLL_FIRST = 2.0
"""Seconds between two reads, where the long poll is not honoured and there was news."""
POLL_CAP = 15.0
"""Seconds between two reads after a while without news."""
POLL_GROWTH = 1.5
NEWS_GAP = 0.2
"""Seconds between two reads while a long poll brings news, so that a chatty job is read in blocks."""
DRAIN_WAIT = 5
"""Seconds that a read after the terminal state waits for more."""
DEAD_AFTER = 15.0
"""Seconds without a byte, after the long poll's own, after which a read's connection counts as dead."""
LAST_LOOK = 0.5
"""Seconds that a long poll leaves before the deadline, so that its answer is still heard."""
EMPTY_AT_END = 2
"""Reads of a finished job that succeed and bring nothing: then that is all, whether the service says so or not."""
UNREADABLE_AT_END = 5
"""Reads of a finished job that say both "could not be read" and "no more": then there is no more."""
BUGS_BORNE = 4
"""Answers INTERNAL in a row that a read bears: another replica may do better."""

_OPTIONAL = ("wait", "timeout")
"""Query parameters that an older service may not know, in the order in which they are given up."""


class Follower:
    """Reads one job's output piece by piece. Its ``cursor`` is all that another one needs to go on."""

    def __init__(
        self,
        terms: Terms,
        command_id: str,
        *,
        encoding: Encoding,
        deadline: Deadline,
        cursor: str | None = None,
        job_timeout: int | None = None,
        long_poll: bool = True,
        stream: Stream | None = None,
        most_wait: int = MAX_WAIT,
        note: Callable[[JobRead, int], None] | None = None,
    ) -> None:
        self._terms = terms
        self._command_id = command_id
        self._encoding = encoding
        self._deadline = deadline
        self._job_timeout = job_timeout
        self._long_poll = long_poll
        self._stream = stream
        self._most_wait = most_wait
        self._note = note
        self._at_end = cursor == END
        self._tries = Tries(terms, deadline, what=f"job {command_id}")
        self.cursor = cursor
        """The place after the last piece."""
        self.last: JobRead | None = None
        """The last answer."""
        self.over = False
        """Terminal and drained."""
        self.skipped_bytes = 0
        """Bytes that are no longer kept, in all gaps that were met."""
        self._restarted = False
        self._last_chance = False
        self._terminal_seen = False
        self._empty = 0
        self._unreadable = 0
        self._bugs = 0
        self._interval = POLL_FIRST
        self._due_in = 0.0
        self._asked_at = 0.0
        self._asked_for = 0
        self._waits: bool | None = None
        self._snapshot: Piece | None = None

    @property
    def done(self) -> bool:
        """There is no next piece to wait for; without ``long_poll``, none that is there already."""
        if self.over or self._long_poll or self.last is None:
            return self.over
        return self._at_end or not self.last.more

    def step(self) -> Flow[Piece | None]:
        """The next piece; without ``long_poll`` only one read, which may bring none."""
        return self.next() if self._long_poll else self.read()

    def next(self) -> Flow[Piece | None]:
        """The next piece of output; None when the job is over and its output read to the end.

        Raises:
            DeadlineExceeded: the deadline passed first; call again with a new follower at ``cursor``.
            OnceboxError: a problem that does not pass.
        """
        while not self.over:
            piece = yield from self.read()
            if piece is not None:
                return piece
        return None

    def read(self) -> Flow[Piece | None]:
        """One successful read, when it is due: its piece, or None if it brought no output."""
        if self._last_chance:
            raise self._too_late()
        yield from pause(self._terms, min(self._due_in, self._deadline.remaining()), self._deadline)
        # Whatever the clock says: no deadline passes without a look after it.
        self._last_chance = self._deadline.remaining() <= 0
        read = yield from self._answered()
        return self._take(read, elapsed=self._terms.clock() - self._asked_at)

    def _too_late(self) -> DeadlineExceeded:
        state = f" ({self.last.state.value} when last seen)" if self.last else ""
        error = DeadlineExceeded(f"job {self._command_id} is not over yet{state}", command_id=self._command_id)
        error.__cause__ = self._tries.last if self._tries.failed else None
        return error

    # Asking

    def _wait(self) -> int:
        if self._at_end or not self._long_poll or "wait" in self._terms.unsupported:
            return 0
        if self.last is not None and not self.last.logs_ok:
            return 0
        most = min(self._most_wait, DRAIN_WAIT if self._terminal_seen else MAX_WAIT)
        return max(0, int(min(most, self._deadline.remaining() - LAST_LOOK)))

    def _answered(self) -> Flow[JobRead]:
        while True:
            self._asked_at = self._terms.clock()
            self._asked_for = self._wait()
            try:
                answer = yield from ask(self._terms, self._request(self._asked_for), self._deadline)
                fault = fault_of(answer, of_job=True, now=self._terms.wall())
                if fault is None:
                    read = self._checked(answer)
                    self._tries.succeeded()
                    self._bugs = 0
                    return read
            except Fault as caught:
                fault = caught
            if not self._gave_in(fault):
                yield from self._bear(fault)

    def _request(self, wait: int) -> Request:
        query: dict[str, str] = {"encoding": self._encoding.value}
        if self._stream is not None:
            query["stream"] = self._stream
        if self._at_end:
            query["limit"] = str(STATUS_LIMIT)
        elif self.cursor is not None:
            query["cursor"] = text(self.cursor, "cursor")
        if wait > 0:
            query["wait"] = str(wait)
        if self._job_timeout is not None and "timeout" not in self._terms.unsupported:
            query["timeout"] = str(self._job_timeout)
        path = job_path(self._command_id)
        return Request("GET", f"{path}?{urlencode(query)}", wait + min(self._terms.timeout, DEAD_AFTER))

    def _checked(self, answer: Answer) -> JobRead:
        """The message in ``answer``, if it can be the answer to what was asked."""
        read = decoded(answer, JobRead)
        if read.command_id != self._command_id:
            raise Fault(unreadable(answer, f"the answer is about job {read.command_id}"), transient=True)
        moves = bool(read.output or read.skipped_bytes) and not read.replace
        stale = moves and read.cursor is not None and read.cursor == self.cursor
        if stale:
            raise Fault(unreadable(answer, "output came and the cursor did not move"), transient=True)
        try:
            if read.encoding is Encoding.BASE64:
                _piece(read).data()
        except ValueError as error:
            raise Fault(unreadable(answer, f"output that is not base64: {error}"), transient=True) from None
        return read

    def _gave_in(self, fault: Fault) -> bool:
        """Whether the request can be put in another way that the service may understand."""
        error = fault.error
        if not isinstance(error, InvalidRequest):
            return False
        named = {item.field.rpartition(".")[2] for item in error.errors}
        if "cursor" in named and self.cursor is not None and not self._at_end:
            # Of another version of the service, perhaps: from the start, in place of all that came.
            self.cursor = None
            self._restarted = True
            self._snapshot = None
            return True
        sent = {"wait": self._asked_for > 0, "timeout": self._job_timeout is not None}
        for name in _OPTIONAL:
            if sent[name] and name not in self._terms.unsupported and (name in named or not named):
                self._terms.unsupported.add(name)
                return True
        return False

    def _bear(self, fault: Fault) -> Flow[None]:
        if isinstance(fault.error, JobNotFound) and fault.error.command_id is None:
            fault.error.command_id = self._command_id
        if fault.error.code == "INTERNAL" and self._bugs < BUGS_BORNE:
            self._bugs += 1
            fault.transient = True
        if fault.transient and self._deadline.remaining() <= 0:
            self._tries.last = fault.error
            self._tries.failed += 1
            raise self._too_late()
        if fault.transient and fault.error.retry_after is not None:
            fault.error.retry_after = min(fault.error.retry_after, self._deadline.remaining())
        yield from self._tries.again(fault)

    # Taking

    def _take(self, read: JobRead, *, elapsed: float) -> Piece | None:
        # Without a cursor the service could not know what is news.
        asked = self._asked_for if self.cursor is not None else 0
        new_state = self.last is None or read.state is not self.last.state
        piece = self._piece_of(read) if read.logs_ok and not self._at_end else None
        self.over = self._is_over(read, news=piece is not None or new_state)
        self.cursor = self._place_after(read)
        self._terminal_seen = self._terminal_seen or read.state.terminal
        self._job_timeout = read.timeout or self._job_timeout
        self.last = read
        if self._note is not None:
            self._note(read, self.skipped_bytes)
        self._pace(read, piece, new_state=new_state, asked=asked, elapsed=elapsed)
        return piece

    def _place_after(self, read: JobRead) -> str | None:
        if self._at_end or not read.logs_ok:
            return self.cursor
        if read.cursor is None and self.over and read.state is not JobState.FAILED:
            return END
        return read.cursor or self.cursor

    def _piece_of(self, read: JobRead) -> Piece | None:
        piece = _piece(read)
        if self._restarted:
            piece = dataclasses.replace(piece, replace=True)
            self._restarted = False
        if piece.replace:
            # An exec's outputs, and a log that can only be read from its start, come whole each time.
            known, self._snapshot = self._snapshot, piece
            self.skipped_bytes = piece.skipped_bytes
            return None if piece == known else piece
        self.skipped_bytes += piece.skipped_bytes
        if not any(piece.parts):
            return piece if piece.skipped_bytes else None
        self._snapshot = None
        return piece

    def _is_over(self, read: JobRead, *, news: bool) -> bool:
        if not read.state.terminal:
            return False
        if self._at_end:
            return True
        if not read.logs_ok:
            self._unreadable += read.cursor is None
            return self._unreadable >= UNREADABLE_AT_END
        if read.output_complete or read.cursor is None:
            return True
        if self._terminal_seen and not news and not read.more:
            self._empty += 1
        return self._empty >= EMPTY_AT_END

    def _pace(self, read: JobRead, piece: Piece | None, *, new_state: bool, asked: int, elapsed: float) -> None:
        if piece is not None or new_state:
            self._interval = POLL_FIRST
            at_once = read.more and piece is not None
            spacing = POLL_FIRST if self._waits is False else NEWS_GAP
            self._due_in = 0.0 if at_once else max(0.0, spacing - elapsed)
            return
        if asked:
            self._waits = elapsed >= 0.8 * asked
        if asked and self._waits:
            self._due_in = 0.0
        elif asked or self._at_end or not read.logs_ok or "wait" in self._terms.unsupported:
            self._due_in = max(0.0, self._interval - elapsed)
            self._interval = min(POLL_CAP, self._interval * POLL_GROWTH)
        else:
            self._due_in = max(0.0, (NEWS_GAP if self.cursor else self._interval) - elapsed)


def _piece(read: JobRead) -> Piece:
    if read.stdout is not None or read.stderr is not None:
        parts = (read.stdout or "", read.stderr or "")
        return Piece(parts, read.encoding, any(parts) or read.skipped_bytes > 0, read.skipped_bytes)
    return Piece((read.output,), read.encoding, read.replace, read.skipped_bytes)
