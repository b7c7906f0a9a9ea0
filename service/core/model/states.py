"""The states of a claim, and every way from one to the next. The one table; `docs/concepts/claims.md` has the picture.

::

    (absent) --claim--> CLAIMED --dispatch--> DISPATCHED --settle--> ACCEPTED --advance--> RUNNING --> ENDED
                                                         --settle--> DONE (sandboxes)        --finish--> CLOSED
    (absent) --claim--> DISPATCHED              a job, where its boot mark is known and is in that very write
    CLAIMED, DISPATCHED --settle--> REFUSED     known not to have been executed
    CLAIMED --settle--> RUNNING                 Redis forgot another request with this key, and its fence was found
    DISPATCHED --settle, abandon--> UNKNOWN     may have been executed
    UNKNOWN --advance--> ACCEPTED, RUNNING
    ACCEPTED, RUNNING --advance--> UNKNOWN      over, and nothing proves that it ran
    UNKNOWN, ACCEPTED --finish--> VOIDED, REFUSED, CLOSED; RUNNING, ENDED --finish--> CLOSED
    ACCEPTED --reopen--> CLAIMED                the submission met a void and ran nothing: the next attempt is sent
    REFUSED, VOIDED --reopen--> CLAIMED         a retry really tries again
    UNKNOWN, DONE --reopen--> CLAIMED           sandboxes only: looked for and given up; gone

The scripts under ``service/store/lua`` enforce the same table on the server; a test fails when they disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class ClaimState(Enum):
    """How far a claim got. The value is what stands in Redis."""

    CLAIMED = "claimed"
    """pending: a replica is at it under a lease, and nothing has been sent to the engine."""
    DISPATCHED = "dispatched"
    """pending: the request may have left for the engine."""
    UNKNOWN = "unknown"
    """unknown: it may have been executed and nobody can say yet."""
    REFUSED = "refused"
    """failed: not executed, and nothing in the sandbox says that it can't be: a retry keeps the attempt."""
    VOIDED = "voided"
    """failed: the fence holds a void, so this attempt never ran and never will: a retry takes the next one."""
    ACCEPTED = "accepted"
    """done, provisionally: the engine took the command; the first look is due."""
    RUNNING = "running"
    """done: the run is confirmed and is being followed."""
    ENDED = "ended"
    """done: the job's terminal state stands; its last output is still being read."""
    CLOSED = "closed"
    """done: the final record is written. Nothing changes any more."""
    DONE = "done"
    """done: the engine has named the sandbox."""

    @property
    def pending(self) -> bool:
        """A replica is at work, or was when it died."""
        return self in (ClaimState.CLAIMED, ClaimState.DISPATCHED)

    @property
    def failed(self) -> bool:
        """Known not to have been executed; the key is free for another try."""
        return self in (ClaimState.REFUSED, ClaimState.VOIDED)

    @property
    def settled(self) -> bool:
        """There is an answer for whoever waits: neither pending nor unknown."""
        return not self.pending and self is not ClaimState.UNKNOWN

    @property
    def confirmed(self) -> bool:
        """A job's run is known, and so the request that it is of; or that there is none."""
        return self.settled and self is not ClaimState.ACCEPTED

    @property
    def active(self) -> bool:
        """A job that still needs looking after."""
        return self not in (ClaimState.REFUSED, ClaimState.VOIDED, ClaimState.CLOSED, ClaimState.DONE)


_S = ClaimState

SCRIPTS: Mapping[str, Mapping[ClaimState | None, frozenset[ClaimState]]] = {
    "claim": {None: frozenset({_S.CLAIMED, _S.DISPATCHED})},
    "take_over": {_S.CLAIMED: frozenset({_S.CLAIMED})},
    "renew": {_S.CLAIMED: frozenset({_S.CLAIMED}), _S.DISPATCHED: frozenset({_S.DISPATCHED})},
    "release": {_S.CLAIMED: frozenset({_S.CLAIMED})},
    "dispatch": {_S.CLAIMED: frozenset({_S.DISPATCHED})},
    "settle": {
        _S.CLAIMED: frozenset({_S.REFUSED, _S.RUNNING, _S.CLOSED, _S.DONE}),
        _S.DISPATCHED: frozenset({_S.REFUSED, _S.UNKNOWN, _S.ACCEPTED, _S.DONE}),
        _S.UNKNOWN: frozenset({_S.ACCEPTED, _S.DONE}),
    },
    "abandon": {_S.CLAIMED: frozenset({_S.REFUSED}), _S.DISPATCHED: frozenset({_S.UNKNOWN})},
    "reopen": {
        _S.REFUSED: frozenset({_S.CLAIMED}),
        _S.VOIDED: frozenset({_S.CLAIMED}),
        _S.UNKNOWN: frozenset({_S.CLAIMED}),
        _S.DONE: frozenset({_S.CLAIMED}),
        _S.ACCEPTED: frozenset({_S.CLAIMED}),
    },
    "advance": {
        _S.UNKNOWN: frozenset({_S.UNKNOWN, _S.ACCEPTED, _S.RUNNING}),
        _S.ACCEPTED: frozenset({_S.UNKNOWN, _S.ACCEPTED, _S.RUNNING, _S.ENDED}),
        _S.RUNNING: frozenset({_S.UNKNOWN, _S.RUNNING, _S.ENDED}),
        _S.ENDED: frozenset({_S.ENDED}),
    },
    "finish": {
        _S.UNKNOWN: frozenset({_S.VOIDED, _S.REFUSED, _S.CLOSED}),
        _S.ACCEPTED: frozenset({_S.VOIDED, _S.REFUSED, _S.CLOSED}),
        _S.RUNNING: frozenset({_S.CLOSED}),
        _S.ENDED: frozenset({_S.CLOSED}),
    },
    "request_cancel": {state: frozenset({state}) for state in _S if state.active},
    "restore": {None: frozenset({_S.RUNNING, _S.ENDED})},
}
"""Script -> from -> to. ``None`` is absent: ``restore`` writes the record of a job that was found by its fence."""
