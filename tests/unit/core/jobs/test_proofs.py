"""What is proved of a command that execd took, whatever it printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.fence.protocol import NOTHING_RAN, Boot, Fence, Look
from service.core.jobs import proofs
from service.core.jobs.proofs import Verdict
from service.core.records import JobBody
from service.messages import Reason

TOKEN = "0123456789abcdef" * 2
BODY = JobBody(
    tenant="t", sandbox_id="s", fingerprint="f", command="", timeout=1, submitted_at=0.0, boot="a 7", engine_id="ours"
)
OURS = Fence(kind="run", fingerprint="f", log="/tmp/ours.output")
THEIRS = Fence(kind="run", fingerprint="g", log="/tmp/theirs.output")
VOID, OTHER_VOID = Fence(kind="void", boot="a 7"), Fence(kind="void", boot="b 7")
EMPTY, DAMAGED = Fence(kind="empty"), Fence(kind="damaged")
ELSEWHERE = Fence(kind="run", fingerprint="f", log="/tmp/all.log")
MARKERS = [f"oncebox-fence {TOKEN} {met}\n".encode() for met in ("fp=f", "void a 7", "boot", "none", "")]


def look(found: Fence | None = None, *, alive: bool | None = False, start: int = 7) -> Look:
    processes = None if alive is None else (1,) if alive else ()
    return Look(Boot("c 7", 7), start, processes, found)


LOST = {reason: Verdict("lost", reason=reason) for reason in Reason}
ALIVE = Verdict("adopt", DAMAGED)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (OURS, Verdict("ours", OURS)),
        (THEIRS, Verdict("adopt", THEIRS)),
        (VOID, Verdict("void")),
        (OTHER_VOID, None),
        (EMPTY, None),
        (DAMAGED, None),
        (ELSEWHERE, None),
        (None, None),
    ],
)
def test_what_the_fence_alone_proves(found: Fence | None, verdict: Verdict | None) -> None:
    assert proofs.by_fence(found, BODY) == verdict


@pytest.mark.parametrize("marker", MARKERS)
@pytest.mark.parametrize("before", [b"", b"bash: warning: setlocale: LC_ALL: cannot change locale (xx)\n", b"x"])
@pytest.mark.parametrize("code", [0, 3, NOTHING_RAN, None])
def test_a_marker_anywhere_opens_a_question(marker: bytes, before: bytes, code: int | None) -> None:
    for printed in (before + marker, before + marker + b"more", before + marker[:-1]):
        assert proofs.doubt(code, printed, TOKEN, whole=True) is not None


def test_so_does_the_code_of_a_wrapper_that_could_not_print_it() -> None:
    assert proofs.doubt(NOTHING_RAN, b"", TOKEN, whole=True) == "doubtful"
    assert proofs.doubt(NOTHING_RAN, b"", TOKEN, whole=False) == "doubtful"


def test_only_code_and_whole_output_together_say_that_there_was_no_fence() -> None:
    none = MARKERS[3]
    assert proofs.doubt(NOTHING_RAN, none, TOKEN, whole=True) == "no_fence"
    assert proofs.doubt(NOTHING_RAN, none, TOKEN, whole=False) == "doubtful"
    assert proofs.doubt(NOTHING_RAN, b"x" + none, TOKEN, whole=True) == "doubtful"
    assert proofs.doubt(0, none, TOKEN, whole=True) == "doubtful"


@given(st.binary(), st.integers(0, 255).filter(lambda code: code != NOTHING_RAN))
def test_anything_else_is_a_command_s_own(printed: bytes, code: int) -> None:
    assert proofs.doubt(code, printed, TOKEN, whole=True) is None
    assert proofs.doubt(code, MARKERS[0].replace(b"0123", b"3210"), TOKEN, whole=True) is None


@pytest.mark.parametrize(
    ("seen", "overdue", "verdict"),
    [
        (look(OURS), False, Verdict("ours", OURS)),
        (look(THEIRS), False, Verdict("adopt", THEIRS)),
        (look(DAMAGED), False, Verdict("adopt", DAMAGED)),
        (look(ELSEWHERE), False, Verdict("adopt", ELSEWHERE)),
        (look(VOID), False, Verdict("void")),
        (look(OTHER_VOID), False, Verdict("wait")),
        (look(OTHER_VOID), True, LOST[Reason.FENCE_WIPED]),
        (look(EMPTY), False, LOST[Reason.START_NOT_CONFIRMED]),
        (look(EMPTY, alive=True), True, Verdict("wait")),
        (look(EMPTY, alive=None), False, Verdict("wait")),
        (look(), False, Verdict("wait")),
        (look(), True, LOST[Reason.FENCE_WIPED]),
        (look(alive=True), True, ALIVE),
        (look(alive=True, start=8), True, ALIVE),
        (look(start=8), False, LOST[Reason.CONTAINER_RESTARTED]),
        (look(alive=None, start=0), False, Verdict("wait")),
    ],
)
def test_a_doubtful_command_is_settled_by_its_fence_and_the_living(seen: Look, overdue: bool, verdict: Verdict) -> None:
    assert proofs.of_doubtful(seen, BODY, overdue=overdue) == verdict


@pytest.mark.parametrize(
    ("alive", "overdue", "verdict"),
    [
        (False, False, LOST[Reason.START_NOT_CONFIRMED]),
        (True, False, Verdict("wait")),
        (None, False, Verdict("wait")),
        (True, True, LOST[Reason.START_NOT_CONFIRMED]),
    ],
)
def test_one_without_a_fence_is_lost_unless_a_copy_of_it_lives(
    alive: bool | None, overdue: bool, verdict: Verdict
) -> None:
    unfenced = JobBody(
        tenant="t", sandbox_id="s", fingerprint="f", command="", timeout=1, submitted_at=0.0, fenced=False
    )
    assert proofs.of_doubtful(look(alive=alive), unfenced, overdue=overdue) == verdict
