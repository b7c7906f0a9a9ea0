"""A shell writes a fence line by line: who looked in between learns the rest later."""

import pytest

from service.core.fence.protocol import parse_fence
from service.core.jobs.observe import learnt
from service.core.records import JobBody

WHOLE = b"fp=abc\ntimeout=60\npid=7\nlog=/tmp/0a1b.output\n"

UNKNOWN = JobBody(tenant="t", sandbox_id="s", fingerprint="", command="", timeout=0, submitted_at=1.0, by_fence=True)


@pytest.mark.parametrize("size", range(len(WHOLE)))
def test_a_job_adopted_by_half_a_fence_has_its_log_and_timeout_from_the_next_look(size: int) -> None:
    first = learnt(UNKNOWN, parse_fence(WHOLE[:size]))
    second = learnt(first, parse_fence(WHOLE + b"\nexit=7\n"))
    assert (second.log, second.engine_id, second.timeout, second.fingerprint) == (
        "/tmp/0a1b.output",
        "0a1b",
        60,
        "abc",
    )


def test_what_is_known_stays() -> None:
    known = learnt(UNKNOWN, parse_fence(WHOLE))
    assert learnt(known, parse_fence(b"fp=other\ntimeout=1\npid=1\nlog=/tmp/ff.output\n")) == known
    assert learnt(known, None) == known
