"""``map()``: one command in many sandboxes. What each of them gets, without I/O."""

# ruff: noqa: TID252
from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import OnceboxError
from .arguments import plain
from .calls import Calls, checked_key
from .following import Follower
from .inputs import Stdin, given
from .output import Joined
from .results import MapResult, result_of_job
from .rules import Deadline, Terms
from .steps import Flow
from .transfers import Content, content_of
from .views import SandboxView

PREFIX_LIMIT = 200
"""Characters of a map's key, so that a sandbox's part fits behind it."""


class MapKeys:
    """The key of each sandbox in one map: from the prefix, the sandbox's id, and how often it came before.

    Raises:
        InvalidIdempotencyKey, ValueError: the prefix can't begin a key.
    """

    def __init__(self, prefix: str) -> None:
        if len(checked_key(prefix)) > PREFIX_LIMIT:
            raise ValueError(f"the key of a map is at most {PREFIX_LIMIT} characters")
        self._prefix = prefix
        self._seen: Counter[str] = Counter()

    def next(self, sandbox_id: str) -> str:
        """The key for this occurrence of the sandbox."""
        occurrence = self._seen[sandbox_id]
        self._seen[sandbox_id] += 1
        name = f"{len(sandbox_id)}:{sandbox_id}:{occurrence}"
        # An id that can't be sent gets a key too: its task says what is wrong with it.
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self._prefix}-{digest[:32]}"


@dataclass(frozen=True, slots=True)
class Task:
    """What to do in one sandbox."""

    sandbox_id: str
    key: str
    body: Mapping[str, Any]
    stdin: bytes | None = None
    stdin_path: str | None = None

    def flow(self, calls: Calls) -> Flow[MapResult]:
        """Submits, follows to the end, and says what came of it; never raises an ``OnceboxError``."""
        command_id = None
        try:
            content = None if self.stdin is None else Content(io.BytesIO(self.stdin))
            read = yield from given(calls.terms, self.sandbox_id, content, self.stdin_path)
            made = yield from calls.submit({**self.body, **read, "sandbox_id": self.sandbox_id}, key=self.key)
            command_id = made.message.command_id
            joined = Joined()
            follower = Follower(
                calls.terms,
                command_id,
                encoding=joined.encoding,
                deadline=Deadline(calls.terms, None),
                job_timeout=made.message.timeout,
            )
            while (piece := (yield from follower.next())) is not None:
                joined.take(piece)
            assert follower.last is not None
            result = result_of_job(follower.last, joined.text, joined.skipped_bytes)
            return MapResult(sandbox_id=self.sandbox_id, idempotency_key=self.key, command_id=command_id, result=result)
        except OnceboxError as error:
            return MapResult(
                sandbox_id=self.sandbox_id,
                idempotency_key=self.key,
                command_id=command_id or error.command_id,
                error=error,
            )


def at_once(concurrency: Any) -> int:
    """``concurrency``, if it can be one. Raises ``ValueError``."""
    if not isinstance(concurrency, int) or concurrency < 1:
        raise ValueError(f"concurrency is a whole number, at least 1, not {concurrency!r}")
    return concurrency


class TaskMaker:
    """Makes the tasks of one map.

    Raises:
        InvalidIdempotencyKey, InvalidRequest, ValueError: the map can't be.
    """

    def __init__(
        self,
        terms: Terms,
        *,
        key: str | None,
        body: Mapping[str, Any],
        concurrency: Any,
        stdin: Stdin | None = None,
        stdin_path: str | None = None,
    ) -> None:
        self.concurrency = at_once(concurrency)
        self._keys = MapKeys(terms.new_id() if key is None else key)
        self._body = plain(body)
        self._stdin = _whole(stdin)
        self._stdin_path = stdin_path

    def task(self, sandbox: SandboxView | str) -> Task:
        """The next sandbox's: of its handle, or of its id."""
        sandbox_id = sandbox.id if isinstance(sandbox, SandboxView) else sandbox
        return Task(sandbox_id, self._keys.next(sandbox_id), self._body, self._stdin, self._stdin_path)


def _whole(stdin: Stdin | None) -> bytes | None:
    """All of it, for many commands to read."""
    if stdin is None:
        return None
    with content_of(stdin) as content:
        return content.beginning(content.length)
