"""How a command ended is told by our record and execd's word, not guessed from 137 or -1."""

from __future__ import annotations

import pytest

from service.core.fence.protocol import Fence
from service.core.jobs import outcome
from service.core.jobs.outcome import Ending
from service.messages import JobState
from service.ports.engine import CommandStatus


def status(exit_code: int | None, signal: int | None = None, took: float = 1.0) -> CommandStatus:
    return CommandStatus(
        id="c",
        content="",
        running=False,
        exit_code=exit_code,
        signal=signal,
        started_at=100.0,
        finished_at=100.0 + took,
    )


RUN = Fence(kind="run")
NOTED = Fence(kind="run", exit_code=137)


@pytest.mark.parametrize(
    ("seen", "cancel", "interrupted", "fence", "ending"),
    [
        (status(0), False, False, None, Ending(JobState.EXITED, 0)),
        (status(3), False, False, None, Ending(JobState.EXITED, 3)),
        (status(137, took=10), False, False, None, Ending(JobState.EXITED, 137)),
        (status(-1, 9, took=1), False, False, None, Ending(JobState.EXITED, 137)),
        (status(-1, 9, took=10), False, False, RUN, Ending(JobState.TIMED_OUT, 137)),
        (status(-1, 9, took=9.999), False, False, RUN, Ending(JobState.TIMED_OUT, 137)),
        (status(-1, 9, took=9.8), False, False, RUN, Ending(JobState.EXITED, 137)),
        (status(-1, 9, took=10), False, False, NOTED, Ending(JobState.EXITED, 137)),
        (status(-1, 15, took=10), False, False, None, Ending(JobState.EXITED, 143)),
        (status(-1, 11), False, False, None, Ending(JobState.EXITED, 139)),
        (status(0), True, False, None, Ending(JobState.EXITED, 0)),
        (status(5), True, True, None, Ending(JobState.CANCELLED, 5)),
        (status(143), True, False, None, Ending(JobState.CANCELLED, 143)),
        (status(-1, 9, took=10), True, True, RUN, Ending(JobState.CANCELLED, 137)),
    ],
)
def test_each_end_is_told_apart(
    seen: CommandStatus, cancel: bool, interrupted: bool, fence: Fence | None, ending: Ending
) -> None:
    assert outcome.by_status(seen, timeout=10, cancel=cancel, interrupted=interrupted, fence=fence) == ending


@pytest.mark.parametrize(
    ("log", "engine_id"),
    [
        ("/tmp/0123abcd.output", "0123abcd"),
        ("/tmp/0123abcd.stdout", "0123abcd"),
        ("0123abcd.output", "0123abcd"),
        ("/tmp/x.output (deleted)", None),
        ("/tmp/.output", None),
        ("pipe:[1234]", None),
        (None, None),
    ],
)
def test_a_log_path_tells_the_engines_id(log: str | None, engine_id: str | None) -> None:
    assert outcome.engine_id_of(log) == engine_id
