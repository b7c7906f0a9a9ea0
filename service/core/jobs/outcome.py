"""How a command ended, told by our own record and the engine's word, never guessed from 137 or -1. Pure."""

from __future__ import annotations

import re

import msgspec

from service.core.fence.protocol import Fence
from service.messages import JobState, Reason
from service.ports.engine import CommandStatus

SIGKILL, SIGTERM = 9, 15
SLACK = 0.1
"""Seconds by which execd's clock may end a command before its timeout (1 s was seen to take 0.999)."""

_OUTPUT = re.compile(r"(?:.*/)?([A-Za-z0-9-]{1,64})\.(output|stdout)")


class Ending(msgspec.Struct, frozen=True):
    """A terminal state, and the exit code (128 + n for signal n)."""

    state: JobState
    exit_code: int | None = None
    reason: Reason | None = None


def lost(reason: Reason) -> Ending:
    """Started, or may have, and nobody knows how it ended."""
    return Ending(JobState.LOST, None, reason)


def exit_code(status: CommandStatus) -> int | None:
    """execd's exit code; a command killed by signal n has -1 there, and 128 + n here."""
    if status.signal is not None:
        return 128 + status.signal
    return status.exit_code


def may_have_timed_out(status: CommandStatus, timeout: int) -> bool:
    """Killed by signal 9 when its timeout had passed, by execd's own clock."""
    if status.signal != SIGKILL or timeout <= 0 or status.started_at is None or status.finished_at is None:
        return False
    return status.finished_at - status.started_at >= timeout - SLACK


def by_status(status: CommandStatus, *, timeout: int, cancel: bool, interrupted: bool, fence: Fence | None) -> Ending:
    """The end of a command that execd knows. ``fence`` is looked at where a timeout is possible."""
    code = exit_code(status)
    killed = status.signal in (SIGKILL, SIGTERM) or code in (128 + SIGTERM, 128 + SIGKILL)
    if cancel and (interrupted or killed):
        return Ending(JobState.CANCELLED, code)
    if may_have_timed_out(status, timeout) and (fence is None or fence.exit_code is None):
        return Ending(JobState.TIMED_OUT, code)
    return Ending(JobState.EXITED, code)


def by_fence(code: int, *, cancel: bool, interrupted: bool) -> Ending:
    """The end of a command whose exit code its fence has noted."""
    if cancel and (interrupted or code in (128 + SIGTERM, 128 + SIGKILL)):
        return Ending(JobState.CANCELLED, code)
    return Ending(JobState.EXITED, code)


def engine_id_of(log: str | None) -> str | None:
    """execd's id of the command whose output a fence names."""
    match = _OUTPUT.fullmatch(log) if log else None
    return match[1] if match else None
