"""What is proved of a command that execd took: by its fence, never by what it printed. Pure.

The fence is read first. Where it names the command's own output, the command is the run, whatever it printed. Only
where it does not, and the command is over, is its output looked through for a marker; and that opens a question, no
more, since a job can print one. The question is answered by the fence and the living alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from service.core.fence import protocol
from service.core.fence.protocol import NOTHING_RAN, Fence, Look
from service.core.jobs import outcome
from service.core.records import JobBody
from service.messages import Reason


class Verdict(msgspec.Struct, frozen=True):
    """What is to be believed.

    ``ours``: the command is the run, its output where ``fence`` says. ``adopt``: ``fence`` is another copy's, which
    is followed. ``void``: it ran nothing and never will under this attempt. ``lost`` for ``reason``. ``wait``:
    nothing is proved yet.
    """

    kind: Literal["ours", "adopt", "void", "lost", "wait"]
    fence: Fence | None = None
    reason: Reason | None = None


def by_fence(found: Fence | None, body: JobBody) -> Verdict | None:
    """What the fence alone proves; None: whose it is can't be told, or there is none.

    A void counts under the mark of the dispatch alone: one that was made under another tells nothing of a command
    that was sent under this one.
    """
    if found is None:
        return None
    if found.kind == "void":
        return Verdict("void") if found.boot == body.boot else None
    engine_id = outcome.engine_id_of(found.log)
    if found.kind != "run" or engine_id is None:
        return None
    return Verdict("ours" if engine_id == body.engine_id else "adopt", found)


def unproven(body: JobBody) -> bool:
    """A command that execd took and knows, and whose fence has not been seen to name its output."""
    return body.engine_id is not None and body.log is None and not body.by_fence


Doubt = Literal["no_fence", "stdin_missing", "stderr_not_apart", "doubtful"]
_WORDS: Mapping[str, Doubt] = {"none": "no_fence", "input": "stdin_missing", "apart": "stderr_not_apart"}
"""What a wrapper says that could not even begin -> what it means."""


def doubt(code: int | None, printed: bytes, token: str, *, whole: bool) -> Doubt | None:
    """Whether a command that is over, and that its fence does not name, may have run nothing.

    ``printed`` is the beginning and the end of its output, ``whole`` where that is all of it. A warning of the shell
    may stand before the marker, so it counts anywhere; one that could not be written shows by the exit code.
    All but ``doubtful``: by code and output, the wrapper's own word that no fence could be made, or that what it was to
    open could not be opened.
    """
    if code == NOTHING_RAN and whole:
        marker = protocol.parse_marker(printed, token)
        if marker is not None and marker.met in _WORDS:
            return _WORDS[marker.met]
    return "doubtful" if code == NOTHING_RAN or protocol.names_marker(printed, token) else None


def of_doubtful(look: Look, body: JobBody, *, overdue: bool) -> Verdict:
    """What the fence and the living prove of a command that is over, and may have run nothing.

    ``overdue``: its deadline and a grace have passed. Without a proof it is lost then, and never sent again: a copy
    of it may have run.
    """
    if body.boot is None:
        if look.alive is False or overdue:
            return Verdict("lost", reason=Reason.START_NOT_CONFIRMED)
        return Verdict("wait")
    proved = by_fence(look.fence, body)
    if proved is not None:
        return proved
    found = look.fence
    if found is not None and found.kind in ("run", "damaged"):
        return Verdict("adopt", found)
    if found is not None and found.kind == "empty":
        if look.alive is False:
            return Verdict("lost", reason=Reason.START_NOT_CONFIRMED)
        return Verdict("wait")
    return of_replaced(look, body, start=look.start, overdue=overdue)


def of_replaced(look: Look, body: JobBody, *, start: int, overdue: bool) -> Verdict:
    """What is proved of a command whose fence is not there: another container, or a job wiped the directory (rule 2).

    The living are looked for first: a mark keeps the start of the container that it was made in, and one that came
    back with its files kept is another. ``start`` is the present one's.
    """
    if look.fence is not None and look.fence.kind not in ("void", "empty"):
        return Verdict("adopt", look.fence)
    if look.alive:
        return Verdict("adopt", Fence(kind="damaged"))
    mark = protocol.parse_boot((body.boot or "").encode())
    if mark is not None and mark.replaced_by(start):
        return Verdict("lost", reason=Reason.CONTAINER_RESTARTED)
    return Verdict("lost", reason=Reason.FENCE_WIPED) if overdue else Verdict("wait")
