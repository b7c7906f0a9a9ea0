"""Requests to run a command, checked, with what stands under their keys."""

from __future__ import annotations

import asyncio

import msgspec

from service import errors
from service.core.fence.protocol import reserved
from service.core.model import identity, validation
from service.core.records import JobBody, SandboxRecord
from service.core.sandboxes.access import Access
from service.messages import COMMAND_SHOWN, Exec, SubmitJob
from service.ports.store import Record, Store

JOB_TIMEOUT, EXEC_TIMEOUT = 3600, 60
"""Seconds, where a request names none."""


class Submission(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is sent: kept beside the claim, so that any replica can send the next attempt past a void."""

    command: str
    cwd: str | None = None
    env: dict[str, str] = {}


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
    body: JobBody
    sandbox: SandboxRecord
    seen: Record | None
    """What stood under the key when the request came."""
    own: set[str] = msgspec.field(default_factory=set)
    """Tokens of this request's claims whose command can be no other request's."""

    @property
    def first(self) -> bool:
        """No other request can have had its key: it was made for this one, or this Redis has all that ever happened in
        the sandbox, and no claim of the key.
        """
        return not self.keyed or (self.seen is None and not self.sandbox.found)


class Orders:
    """Takes orders."""

    def __init__(self, store: Store, access: Access) -> None:
        self._store = store
        self._access = access

    async def take(self, tenant: str, request: SubmitJob | Exec, key: str | None) -> Order:
        """Check a request, and that its sandbox is this tenant's. Raises ``InvalidRequest``, ``SandboxNotFound``."""
        kind = "exec" if isinstance(request, Exec) else "job"
        labels = validation.metadata(request.metadata) if isinstance(request, SubmitJob) else {}
        submission = Submission(
            command=validation.command(request.command),
            cwd=validation.path("cwd", request.cwd),
            env=validation.env(request.env, reserved=reserved),
        )
        meaning = {**msgspec.to_builtins(request), "kind": kind}
        if meaning.get("metadata") is not None:
            meaning["metadata"] = labels
        known_key = key or identity.MadeKey(identity.random_token())
        digest = identity.job_digest(tenant, request.sandbox_id, known_key)
        body = JobBody(
            tenant=tenant,
            sandbox_id=request.sandbox_id,
            kind=kind,
            fingerprint=identity.fingerprint(meaning, leave_out=frozenset({"encoding"})),
            command=submission.command[:COMMAND_SHOWN],
            timeout=request.timeout or (EXEC_TIMEOUT if kind == "exec" else JOB_TIMEOUT),
            metadata=labels,
            submitted_at=await self._store.now() / 1000,
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
            body=body,
            sandbox=sandbox,
            seen=seen,
        )


async def _nothing() -> None:
    return None
