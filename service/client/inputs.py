"""What a command reads, as it is sent: a short input in the request, a long one as a file in the sandbox."""

# ruff: noqa: TID252
from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import IO, Any, TypeAlias

from ..errors import InvalidRequest, PreconditionFailed
from ..messages import JobState
from .file_calls import FileCalls
from .rules import Terms
from .steps import Flow
from .transfers import Content, conditions

INLINE = 256 * 1024
"""Bytes of an input that travel in the request; more is uploaded as a file."""
FILES = "/tmp/oncebox-stdin-"  # noqa: S108 - in the sandbox
"""Where an uploaded input is in its sandbox, with the sha256 of its content behind it."""
OVER = frozenset({JobState.EXITED, JobState.TIMED_OUT, JobState.CANCELLED})
"""States after which no attempt follows: nothing will read the input."""

Stdin: TypeAlias = str | bytes | IO[bytes]
"""What a command reads: text (as UTF-8), bytes, or an open binary file, from where it stands to its end."""


def given(
    terms: Terms, sandbox_id: str, stdin: Content | None, stdin_path: str | None, *, mark: str = ""
) -> Flow[dict[str, str | None]]:
    """The fields of a request that say what its command reads; a long input is uploaded, where it is not there yet.

    ``mark`` stands at the end of the file's name, so that it is nobody else's.
    """
    if stdin is None:
        return {"stdin_path": stdin_path}
    first = stdin.beginning(INLINE + 1)
    if len(first) <= INLINE:
        return {"stdin_path": stdin_path, **_inline(first)}
    if stdin_path is not None:
        raise InvalidRequest.of("stdin_path", "can't be given together with stdin")
    path = FILES + stdin.sha256() + mark
    try:
        yield from FileCalls(terms, sandbox_id).write(
            path, stdin, mode=None, user=None, conditions=conditions(None, create=True)
        )
    except PreconditionFailed:
        pass  # the name says what is in it
    return {"stdin_path": path}


def done_with(terms: Terms, sandbox_id: str, sent: Mapping[str, Any], mark: str, state: JobState) -> Flow[None]:
    """Removes the input that ``given`` uploaded under a name with ``mark``, once nothing will read it."""
    path = sent.get("stdin_path") or ""
    if mark and path.startswith(FILES) and path.endswith(mark) and state in OVER:
        yield from FileCalls(terms, sandbox_id).discard(path)


def _inline(data: bytes) -> dict[str, str]:
    try:
        return {"stdin": data.decode()}
    except UnicodeDecodeError:
        return {"stdin": base64.b64encode(data).decode("ascii"), "stdin_encoding": "base64"}
