"""What the core asks of a store: claims changed by compare-and-set, a few indexes, leases and messages.

All times are Unix milliseconds by the store's own clock; a replica's clock is never asked. Every method may
raise ``service.errors.StoreUnavailable``: then nothing is known to have been written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from service.core.model.states import ClaimState
from service.messages import Stream


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A claim as it stood at ``now``. ``id`` is a ``command_id``, or the digest of a sandbox's key."""

    id: str
    state: ClaimState
    epoch: int
    """Fencing token: raised at every change of owner."""
    attempt: int
    """Names the fence (jobs) or the create (sandboxes)."""
    revision: int
    """Raised by every write; followers compare it."""
    lease_until: int
    token: str
    """Random, made for one try: tells our own resent write, and writers from before a loss of data."""
    owner: str
    """The replica at work."""
    cancel: bool
    """A caller wants the job cancelled."""
    body: bytes
    now: int
    """The store's time when this was read."""

    @property
    def lease_expired(self) -> bool:
        """Nobody renews this claim any more."""
        return self.lease_until <= self.now


class Unreadable(msgspec.Struct, frozen=True):
    """Stands for a record that can't be read here: another version wrote it, or nobody did."""

    id: str


class Appended(msgspec.Struct, frozen=True):
    """Output to keep beside a record: ``data`` begins at byte ``offset`` of the log."""

    offset: int
    data: bytes


class Claimed(NamedTuple):
    """What came of making a claim."""

    done: bool
    record: Record
    sandbox: bytes | None
    """What was remembered of the job's sandbox in that very moment."""


class Ended(NamedTuple):
    """A job that is over with this very write, and is counted for its tenant."""

    tenant: str
    state: str
    """What a caller sees of it now."""


class Minute(NamedTuple):
    """Something that happened to a tenant's jobs: how often, in the minute that began at ``at`` (ms)."""

    at: int
    what: str
    """``started``, or the state in which they ended."""
    times: int


class JobRow(msgspec.Struct, frozen=True):
    """One entry of a job index: when it was submitted (ms), and its id."""

    at: int
    command_id: str


class Admission(msgspec.Struct, frozen=True):
    """What a rate said to one request. Times are seconds from then on."""

    let_through: bool
    left: int
    """Requests that may still come at once."""
    wait: float
    """Until the next may come."""
    reset: float
    """Until as many as ever may come at once."""


class StoreHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says of itself; None where it can't be read."""

    version: str | None = None
    maxmemory_policy: str | None = None
    persistence: str | None = None
    """``aof``, ``rdb`` or ``none``."""
    role: str | None = None


class Store(Protocol):
    """A Redis server, or one in the process. Answers that did not change anything say what is there now."""

    # -- claims: each is one script, one round trip; `service.core.model.states.SCRIPTS` has the legal moves.
    # -- Each returns (done, record): done is False where the compare failed, and record is what stands there.

    # -- A job stands in the lists of active ones (`active_of`, `due`) for as long as its claim is active, by the very
    # -- script that writes the claim. ``tenant``, where it may be given: whose lists (`jobs`) a job is put on besides.

    async def claim(
        self,
        id: str,
        *,
        token: str,
        owner: str,
        lease: float,
        body: bytes,
        request: bytes = b"",
        tenant: str | None = None,
        dispatched: bool = False,
    ) -> Claimed:
        """Make the claim where there is none (``SET NX``), CLAIMED or, where it is ``dispatched``, DISPATCHED.

        Epoch 1, attempt 1. A record in that state whose token is ``token`` is our own resent write: done. ``request``
        is kept beside it, compressed (see ``request``). Waits for ``claim_replicas`` acknowledgements where the adapter
        was told to; too few raise ``StoreUnavailable``.
        """
        ...

    async def get(self, id: str) -> Record | None:
        """The record, or None."""
        ...

    async def get_many(self, ids: Sequence[str]) -> list[Record | None]:
        """Several at once, in the order asked for. Raises ``StoreUnavailable`` where one of them can't be read."""
        ...

    async def get_readable(self, ids: Sequence[str]) -> list[Record | Unreadable | None]:
        """The same for who can do without those that can't be read."""
        ...

    async def take_over(self, seen: Record, *, token: str, owner: str, lease: float) -> tuple[bool, Record | None]:
        """CLAIMED with a lease that ran out becomes ours: epoch + 1, same attempt and body.

        By the server's time, and at ``seen``'s epoch and token.
        """
        ...

    async def reopen(
        self,
        seen: Record,
        *,
        token: str,
        owner: str,
        lease: float,
        next_attempt: bool,
        body: bytes,
        request: bytes = b"",
        tenant: str | None = None,
    ) -> tuple[bool, Record | None]:
        """REFUSED, VOIDED, ACCEPTED, UNKNOWN or DONE, at ``seen.revision`` and token, becomes CLAIMED again.

        Epoch + 1, attempt + 1 if ``next_attempt``, no TTL.

        The script itself holds: VOIDED and ACCEPTED (whose submission met a void) always take the next attempt,
        REFUSED never does. A wish to cancel is dropped, but from ACCEPTED.
        """
        ...

    async def dispatch(self, mine: Record, *, lease: float, body: bytes) -> tuple[bool, Record | None]:
        """CLAIMED becomes DISPATCHED for the owner (token and epoch), with a fresh lease.

        Refused where a cancel is wished.
        """
        ...

    async def renew(self, mine: Record, *, lease: float) -> tuple[bool, Record | None]:
        """A fresh lease for the owner of a CLAIMED or DISPATCHED claim."""
        ...

    async def release(self, mine: Record) -> tuple[bool, Record | None]:
        """Give a CLAIMED claim back: its lease ends now."""
        ...

    async def settle(
        self,
        mine: Record,
        state: ClaimState,
        *,
        body: bytes,
        ttl: float | None,
        look_in: float = 0.0,
        ended: Ended | None = None,
    ) -> tuple[bool, Record | None]:
        """The owner (token and epoch) writes how it went. ``ttl`` seconds, or None to keep it for good.

        ``look_in`` seconds a job is looked at, where it is active still.
        """
        ...

    async def abandon(
        self, seen: Record, *, body: bytes, ttl: float | None, tenant: str | None = None
    ) -> tuple[bool, Record | None]:
        """At ``seen.revision`` and token, with a lease that ran out.

        CLAIMED becomes REFUSED with ``ttl``, DISPATCHED becomes UNKNOWN without.
        """
        ...

    async def advance(
        self,
        seen: Record,
        state: ClaimState,
        *,
        body: bytes,
        append: Appended | None = None,
        append_stderr: Appended | None = None,
        notify: bool = True,
        look_in: float = 0.0,
    ) -> tuple[bool, Record | None]:
        """Whoever follows writes what it saw of an active job, at ``seen.revision`` and token.

        ``append`` adds output in the same script: where ``append.offset`` is the end of what is kept it is joined on,
        else it takes its place (a gap). Of what is kept, at least the last ``record_output`` bytes stay and at most
        twice as many. ``append_stderr``: the same for the stderr of a job that has it apart. ``notify``: False where
        there is nothing in it that a waiter needs to know. ``look_in``: seconds until the next look.
        """
        ...

    async def finish(
        self,
        seen: Record,
        state: ClaimState,
        *,
        body: bytes,
        ttl: float,
        append: Appended | None = None,
        append_stderr: Appended | None = None,
        kept: bool = True,
        kept_stderr: bool = False,
        streams: Mapping[str, bytes] | None = None,
        clean_in: float | None = None,
        ended: Ended | None = None,
    ) -> tuple[bool, Record | None]:
        """Whoever follows writes the end of a job, at ``seen.revision`` and token: all of it, or nothing.

        CLOSED trims what is kept to ``record_output``, compresses it, and lists it for the budget. ``kept`` and
        ``kept_stderr``: output may have been kept before. ``streams`` are those of an exec. ``clean_in`` seconds the
        chore ``fences`` is due for the job (``"<id> <attempt>"``).
        """
        ...

    async def request_cancel(self, id: str) -> tuple[bool, Record | None]:
        """Note the wish on any active record (see ``ClaimState.active``); again is fine. None: no such record.

        What no lease holds is due for a look at once.
        """
        ...

    async def restore(
        self, id: str, state: ClaimState, *, attempt: int, token: str, body: bytes, tenant: str | None = None
    ) -> tuple[bool, Record]:
        """Write the record of a job that was found by its fence after the data was lost, where there is none."""
        ...

    async def forget(self, id: str) -> None:
        """Drop a job from the lists of active ones, where its claim is gone or over."""
        ...

    async def request(self, id: str) -> bytes | None:
        """The request kept beside a claim, decompressed."""
        ...

    async def output(self, id: str, start: int, end: int, stream: Stream = "stdout") -> Appended | None:
        """Bytes ``[start, end)`` of the kept output, cut to what is kept; None where nothing of it is kept.

        ``stream``: of a job that has its streams apart; "stdout" is any other's merged one.

        The result's ``offset`` may be greater than ``start`` (what came before is no longer kept).
        """
        ...

    async def output_span(self, id: str, stream: Stream = "stdout") -> tuple[int, int] | None:
        """First and one past the last byte of the kept output; None where there is none."""
        ...

    async def put_streams(self, id: str, streams: Mapping[str, bytes], *, ttl: float) -> None:
        """Keep the named outputs (``stdout``, ``stderr``) of an exec that still runs beside its record, compressed."""
        ...

    async def streams(self, id: str) -> dict[str, bytes] | None:
        """The named outputs of an exec."""
        ...

    # -- sandboxes by id

    async def put_sandbox(self, sandbox_id: str, body: bytes, *, ttl: float) -> None:
        """Remember a sandbox for ``ttl`` seconds."""
        ...

    async def swap_sandbox(self, sandbox_id: str, seen: bytes | None, body: bytes, *, ttl: float) -> bool:
        """Remember a sandbox for ``ttl`` seconds, where what is remembered is still ``seen``; False where it is not.

        One's own write whose answer was lost counts as somebody else's.
        """
        ...

    async def get_sandbox(self, sandbox_id: str) -> bytes | None:
        """What was remembered of a sandbox."""
        ...

    # -- jobs as lists

    async def unlist_job(self, command_id: str, *, tenant: str) -> None:
        """Take a job that has no record any more out of its tenant's lists."""
        ...

    async def jobs(self, *, tenant: str, sandbox_id: str | None, before: JobRow | None, limit: int) -> list[JobRow]:
        """A tenant's jobs (of one sandbox), newest first, after ``before``.

        Equal times are ordered by id, descending.
        """
        ...

    async def minutes(self, tenant: str) -> tuple[int, list[Minute]]:
        """The store's time, and what happened to a tenant's jobs in the hour before it and in this minute."""
        ...

    async def active_of(self, sandbox_id: str) -> list[str]:
        """The active jobs of a sandbox."""
        ...

    async def due(self, *, limit: int, lease: float) -> list[str]:
        """Active jobs whose look is due, at most ``limit``.

        Each is set back by ``lease`` seconds in the same step, so that no other replica gets it meanwhile and,
        should this one die, another does.
        """
        ...

    async def schedule(self, command_id: str, *, after: float) -> None:
        """Set the next look of an active job; does not list one that is not listed."""
        ...

    async def active_count(self) -> int:
        """How many jobs are active, over all replicas. May be a second old."""
        ...

    # -- small shared things

    async def lease(self, name: str, seconds: float) -> bool:
        """Take the named lease (``SET NX PX``); False where somebody holds it. It ends by itself."""
        ...

    async def remember(self, name: str, value: bytes, *, ttl: float) -> None:
        """Keep a small named value."""
        ...

    async def recall(self, name: str) -> bytes | None:
        """A value kept by ``remember``."""
        ...

    async def reserve(self, name: str, member: str, *, limit: int | None, ttl: float) -> bool:
        """Take one of ``limit`` slots of ``name`` for ``member``, or keep the one it has, for ``ttl`` seconds from now.

        With a limit it does not end earlier than before: who asks may not know that its job runs. False where others
        have them all. A slot ends by itself, so that a crash can't leak one.
        """
        ...

    async def holders(self, name: str) -> dict[str, float]:
        """Who has a slot of ``name``, and for how many seconds from now."""
        ...

    async def vacate(self, name: str, member: str) -> None:
        """Give a slot back."""
        ...

    async def admit(self, name: str, *, interval: float, burst: int) -> Admission:
        """Count one request of ``name``, if one every ``interval`` seconds is not exceeded by more than ``burst``."""
        ...

    async def poll_slot(
        self, queue: str, name: str, *, lease: float, interval: float, burst: int, most: float, more: int
    ) -> float | None:
        """Take the right to ``name`` for ``lease`` seconds, and a place in ``queue``: seconds to wait for it.

        None: somebody else has the right. A place is ``interval`` seconds long; ``burst`` of them may be taken at once
        after a quiet time; nobody waits longer than ``most``. ``more``: places that were taken without asking, which
        count whether the right was had or not. The lease begins after the wait.
        """
        ...

    async def plan(self, chore: str, sandbox_id: str, *, after: float) -> None:
        """List a chore of a sandbox, due ``after`` seconds from now, or as it stands if that is earlier."""
        ...

    async def due_chores(self, chore: str, *, limit: int, lease: float) -> list[str]:
        """Chores that are due (see ``finish``), each set back by ``lease`` seconds in the same step, as in ``due``."""
        ...

    async def complete(self, chore: str, member: str) -> None:
        """Take a chore off the list."""
        ...

    async def trim_outputs(self, budget: int) -> int:
        """Drop the oldest recorded outputs while all of them take more than ``budget`` bytes; how many went."""
        ...

    def changes(self) -> AsyncIterator[str | None]:
        """Ids of records as they change, from every replica, over one subscription of its own.

        None when messages may have been lost (so look for yourself). Reconnects for ever; ends when cancelled.
        """
        ...

    async def now(self) -> int:
        """The store's time, Unix milliseconds."""
        ...

    async def health(self) -> StoreHealth:
        """Raises ``StoreUnavailable`` when the server does not answer within its deadline."""
        ...

    async def check_writes(self) -> None:
        """Raises ``StoreUnavailable`` where a claim could not be written now, with the reason as a sentence."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...
