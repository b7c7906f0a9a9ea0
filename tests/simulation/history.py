"""What happened in a world, simulated or real: what callers asked and saw, what sandboxes executed, what befell them.

A history is a list of events, kept as JSON lines (`write`, `read`); `tests.simulation.checker` says what is wrong with
one. Times are seconds from the beginning of the world, virtual or real, by one clock that no fault moves. Who writes a
history knows nothing by the product's word: calls are noted by the callers, executions by the sandboxes, the rest by
whoever makes it happen.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

NO_ANSWER = 0
"""In place of an HTTP status: no whole answer came, whatever was carried out."""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """Anything that happened, at ``at`` seconds."""

    at: float


class Quota(msgspec.Struct, frozen=True, array_like=True):
    """What one tenant may have at once."""

    tenant: str
    jobs: int


class Begun(Event, frozen=True, kw_only=True, omit_defaults=True, tag="begun"):
    """The world begins; all else comes after it. Its settings, seconds but where it says otherwise."""

    seed: int = 0
    what: str = ""
    """For people: which world this is."""
    settled: float = 60.0
    """After `Quiet`: until then nothing is pending, running longer than its command, or unknown."""
    retention: float = 86_400.0
    """``ONCEBOX_RETENTION``."""
    interval: float = 3.0
    """``ONCEBOX_ENGINE_INTERVAL``."""
    kept: float = 2 * 86_400.0
    """After the inventory: within it all that is kept of the past ends by itself."""
    quotas: tuple[Quota, ...] = ()
    """Whose jobs are limited; all others' are not."""


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One step of a job's life, as an answer tells it."""

    state: str
    """Of its claim."""
    attempt: int


class Seen(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a caller was told of one job or of one sandbox."""

    id: str
    """The ``command_id``, or the id of the sandbox."""
    state: str | None = None
    exit_code: int | None = None
    reason: str | None = None
    fenced: bool = True
    over: bool = False
    """Of a job: its cursor is null, so that nothing can change any more."""
    output: str | None = None
    """All of the job's output, put together by its caller; None: not known. Only where ``over``."""
    output_complete: bool = False
    """What the last answer said of it."""
    steps: tuple[Step, ...] = ()
    """The job's history."""


class Call(Event, frozen=True, kw_only=True, omit_defaults=True, tag="call"):
    """One request of one caller, sent once at ``at``; noted when its answer came, or when it gave up waiting."""

    until: float
    """When the answer came, or none did."""
    caller: str
    tenant: str
    what: Literal["create", "submit", "status", "output", "cancel", "list", "delete"]
    replica: str = ""
    key: str | None = None
    """Of a create and a submit: the Idempotency-Key; None: none was sent."""
    owner: str | None = None
    """Of a create: the ``workspace_owner``."""
    body: str = ""
    """Of a create: what was asked for, in any form that is equal for equal requests."""
    mark: str = ""
    """Of a submit: the name of the command, which `Executed` has too. Equal marks are equal requests."""
    sandbox: str = ""
    """Of a submit: where to."""
    of: str = ""
    """Of all others: the ``command_id`` or the sandbox's id that was asked for."""
    status: int = NO_ANSWER
    """As in HTTP; 200, 201, 202 and 204 are good."""
    code: str = ""
    """Of a problem."""
    retryable: bool = False
    told_id: str = ""
    """The ``command_id`` that a problem names."""
    seen: tuple[Seen, ...] = ()
    """One for each job or sandbox that a good answer tells of."""

    @property
    def good(self) -> bool:
        """It was answered, and not with a problem."""
        return 200 <= self.status < 300


class Executed(Event, frozen=True, kw_only=True, omit_defaults=True, tag="executed"):
    """A command was started in a sandbox at ``at``, by the word of the sandbox."""

    sandbox: str
    mark: str
    files: int = 1
    """Which file system of the sandbox: its first is 1."""
    container: int = 1
    """Which life of the sandbox's container: its first is 1."""
    until: float | None = None
    """When its first process ended; None: it did not, or nobody saw it."""
    exit_code: int | None = None
    """128 + n where signal n killed it; None: not known."""
    output: str | None = None
    """What it printed; None: not known."""
    fenced: bool = True
    attempt: str = ""
    """The fence's token, where it is known; for people."""


class SandboxMade(Event, frozen=True, kw_only=True, omit_defaults=True, tag="sandbox_made"):
    """The engine made a sandbox."""

    sandbox: str
    digest: str = ""
    """Of the key that it was made for, as its metadata have it; empty: none."""


class SandboxEnded(Event, frozen=True, kw_only=True, omit_defaults=True, tag="sandbox_ended"):
    """A sandbox is gone for good: deleted, expired, terminated."""

    sandbox: str
    why: str = ""
    """`DELETED`, or any other words for people."""


DELETED = "deleted"
"""A replica of the service asked the engine to."""


class ContainerRestarted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="container_restarted"):
    """A sandbox's container came back, and all that ran in it is gone."""

    sandbox: str
    new_files: bool
    """With another file system: all its files are gone."""


class DaemonRestarted(Event, frozen=True, kw_only=True, omit_defaults=True, tag="daemon_restarted"):
    """A sandbox's execd died (and may have come back) with an empty table; what it started lives on."""

    sandbox: str


class FencesWiped(Event, frozen=True, kw_only=True, omit_defaults=True, tag="fences_wiped"):
    """A command deleted the fences of its own sandbox."""

    sandbox: str


class StoreLost(Event, frozen=True, kw_only=True, omit_defaults=True, tag="store_lost"):
    """Redis lost data."""

    everything: bool = True
    """False: it fell back to an older state."""
    since: float = 0.0
    """What was written before this stands; only where not everything is lost."""


class Fault(Event, frozen=True, kw_only=True, omit_defaults=True, tag="fault"):
    """A trouble from ``at`` until ``until``."""

    until: float
    what: str
    """The names below mean something to the checker, every other name to people."""
    who: str = ""
    """A sandbox, a replica, or nothing: it befalls all."""


LOOKUP_FAILS = "lookup fails"
"""Asking the engine for sandboxes by their metadata may fail, or its answers are lost."""
SANDBOX_DEAF = "sandbox deaf"
"""A sandbox's daemon does not answer, or its answers are lost: dead, paused, cut off."""
DISK_FULL = "disk full"
"""A sandbox's disk, so that fences can't be filled."""
STORE_AWAY = "store away"
"""Redis may not answer (down, cut off, slow, full), or its answers are lost: `who` may be a replica."""


class Quiet(Event, frozen=True, kw_only=True, omit_defaults=True, tag="quiet"):
    """From here on there is no trouble any more, and everybody is there."""


class EngineReads(Event, frozen=True, kw_only=True, omit_defaults=True, tag="engine_reads"):
    """How often the engine was asked for news so far, over all replicas; noted about once a second."""

    states: int
    outputs: int
    active: int
    """Jobs that are under way at this moment."""


class Kept(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is still there."""

    kind: Literal["claim", "lease", "slot", "list", "fence", "key"]
    """``list``: an entry of a list of active jobs; ``key``: any other key of the store."""
    name: str
    state: str = ""
    """Of a claim."""
    ends: float | None = None
    """Seconds until it ends by itself; None: never."""
    of: str = ""
    """The command or the sandbox that it belongs to."""


class Living(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sandbox that lives."""

    sandbox: str
    digest: str = ""
    request: str = ""
    """Which request to the engine made it, as its metadata have it; two that are equal are one that was doubled."""


class Inventory(Event, frozen=True, kw_only=True, omit_defaults=True, tag="inventory"):
    """What store and sandboxes hold, after the world was quiet for long enough, and no job is under way."""

    kept: tuple[Kept, ...] = ()
    living: tuple[Living, ...] = ()


AnyEvent = (
    Begun
    | Call
    | Executed
    | SandboxMade
    | SandboxEnded
    | ContainerRestarted
    | DaemonRestarted
    | FencesWiped
    | StoreLost
    | Fault
    | Quiet
    | EngineReads
    | Inventory
)

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(AnyEvent)


def write(path: Path, history: Iterable[AnyEvent]) -> None:
    """Write a history as JSON lines, in the order of its events' times."""
    with path.open("wb") as file:
        for event in sorted(history, key=lambda event: event.at):
            file.write(_ENCODER.encode(event) + b"\n")


def read(path: Path) -> list[AnyEvent]:
    """Read a history. Raises ``msgspec.ValidationError`` for a line that is none of an event."""
    with path.open("rb") as file:
        return [_DECODER.decode(line) for line in file]
