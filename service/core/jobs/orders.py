"""Requests to run a command, checked, with what stands under their keys."""

from __future__ import annotations

import asyncio
import hashlib

import msgspec

from service import errors
from service.core import records
from service.core.fence.protocol import reserved
from service.core.model import identity, validation
from service.core.records import JobBody, SandboxRecord
from service.core.sandboxes import users
from service.core.sandboxes.access import Access
from service.messages import COMMAND_SHOWN, STDIN_KEPT, Exec, SubmitJob
from service.ports.store import Record, Store

JOB_TIMEOUT, EXEC_TIMEOUT = 3600, 60
"""Seconds, where a request names none."""


class Submission(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is sent: kept beside the claim, so that any replica can send the next attempt past a void."""

    command: str
    words: bool = False
    """``command`` is a program and its arguments, quoted: no shell is to run it."""
    cwd: str | None = None
    env: dict[str, str] = {}
    user: str | None = None
    stdin_path: str | None = None
    stdin: bytes | None = None
    """What it is to read, up to ``STDIN_KEPT`` bytes."""
    stdin_hash: str | None = None
    """The sha256 of all that it is to read."""
    apart: bool = False

    @property
    def fed(self) -> bool:
        """Its input is to be written into its sandbox first."""
        return self.stdin_hash is not None


_submissions = msgspec.json.Decoder(Submission)


def submission_of(kept: bytes) -> Submission:
    """What is kept beside a claim."""
    return _submissions.decode(kept)


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request to run a command."""

    command_id: str
    key: str
    keyed: bool
    """The caller sent the key: an earlier submission of it may have left a fence."""
    submission: Submission
    stdin: bytes | None
    """All that the command is to read."""
    body: JobBody
    sandbox: SandboxRecord
    seen: Record | None
    """What stood under the key when the request came."""
    all_is_known: bool
    """The store has all that ever happened in the sandbox."""
    own: set[str] = msgspec.field(default_factory=set)
    """Tokens of this request's claims whose command can be no other request's."""

    @property
    def first(self) -> bool:
        """No other request can have had its key: it was made for this one, or this Redis has all that ever happened in
        the sandbox, and no claim of the key.
        """
        return not self.keyed or (self.seen is None and self.all_is_known)


class Orders:
    """Takes orders. ``retention``: seconds for which a job's record is kept after its end."""

    def __init__(self, store: Store, access: Access, *, retention: float) -> None:
        self._store = store
        self._access = access
        self._retention = retention

    async def take(self, tenant: str, request: SubmitJob | Exec, key: str | None) -> Order:
        """Check a request, and that its sandbox is this tenant's. Raises ``InvalidRequest``, ``SandboxNotFound``."""
        kind = "exec" if isinstance(request, Exec) else "job"
        labels = validation.metadata(request.metadata)
        stdin = validation.stdin(request.stdin, request.stdin_encoding, request.stdin_path)
        submission = _submission(request, stdin)
        meaning = {**msgspec.to_builtins(request), "kind": kind}
        if stdin is not None:  # what it says, however it was encoded
            meaning |= {"stdin": hashlib.sha256(stdin).hexdigest(), "stdin_encoding": None}
        if meaning.get("metadata") is not None:
            meaning["metadata"] = labels
        known_key = key or identity.MadeKey(identity.random_token())
        digest = identity.job_digest(tenant, request.sandbox_id, known_key)
        now = await self._store.now() / 1000
        body = JobBody(
            tenant=tenant,
            sandbox_id=request.sandbox_id,
            kind=kind,
            fingerprint=identity.fingerprint(meaning, leave_out=frozenset({"encoding"})),
            command=submission.command[:COMMAND_SHOWN],
            timeout=request.timeout or (EXEC_TIMEOUT if kind == "exec" else JOB_TIMEOUT),
            metadata=labels,
            apart=submission.apart,
            submitted_at=now,
        )
        command_id = identity.command_id(request.sandbox_id, identity.job_ref(digest))
        keyed = not isinstance(known_key, identity.MadeKey)
        sandbox, seen = await asyncio.gather(
            self._access.known(tenant, request.sandbox_id, deleted=True),
            self._store.get(command_id) if keyed else _nothing(),
        )
        if sandbox.deleted and seen is None:
            raise errors.SandboxNotFound(sandbox_id=request.sandbox_id)
        return Order(
            command_id=command_id,
            key=known_key,
            keyed=keyed,
            submission=submission,
            stdin=stdin,
            body=body,
            sandbox=sandbox,
            seen=seen,
            all_is_known=records.all_is_known(sandbox, now, retention=self._retention),
        )


def _submission(request: SubmitJob | Exec, stdin: bytes | None) -> Submission:
    """What is to be sent for a request. Raises ``InvalidRequest``, ``PayloadTooLarge``."""
    if request.user is not None:
        users.parse(request.user)
    fed = stdin or None  # nothing to read is what every command has without an input
    return Submission(
        command=validation.command(request.command, request.argv),
        words=request.argv is not None,
        cwd=validation.path("cwd", request.cwd),
        env=validation.env(request.env, reserved=reserved),
        user=request.user,
        stdin_path=validation.path("stdin_path", request.stdin_path),
        stdin=fed if fed is not None and len(fed) <= STDIN_KEPT else None,
        stdin_hash=None if fed is None else hashlib.sha256(fed).hexdigest(),
        apart=isinstance(request, SubmitJob) and request.stderr == "apart",
    )


async def _nothing() -> None:
    return None
