"""The records of jobs: nobody else writes one. Each write is a compare-and-set with a record that was read."""

from __future__ import annotations

import asyncio

import msgspec

from service.core import records
from service.core.claims import failpoints
from service.core.claims.ownership import Ownership
from service.core.jobs import decisions, pacing
from service.core.jobs.decisions import Change
from service.core.limits.quotas import Quotas
from service.core.model import identity
from service.core.model.states import ClaimState
from service.core.records import JobBody
from service.core.sandboxes.expiry import Expiry
from service.core.telemetry import Kind, Telemetry
from service.messages import Reason
from service.ports.store import Claimed, Ended, Record, Store

CLEAN_MARGIN = 3600.0
"""Seconds after the end of a job's record for which its fence still stands."""
POLL_BY_OTHERS = 2.0
"""Seconds after which any replica polls a command that was accepted: the one that sent it may have ended."""


class Ledger:
    """Writes the records of jobs, for one replica. Every method raises ``StoreUnavailable``."""

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        quotas: Quotas,
        expiry: Expiry,
        telemetry: Telemetry,
        *,
        retention: float,
    ) -> None:
        self._store = store
        self._ownership = ownership
        self._quotas = quotas
        self._expiry = expiry
        self._telemetry = telemetry
        self._retention = retention
        self._ahead = 0.0
        """Seconds by which the store's clock is ahead of the monotonic one here, by its last answer."""

    # -- claims

    async def claim(self, id: str, token: str, body: JobBody, request: bytes, *, dispatched: bool) -> Claimed:
        """Make a job's claim where there is none."""
        state = ClaimState.DISPATCHED if dispatched else ClaimState.CLAIMED
        body = self._stepped(body, state, 1, at=body.dispatched_at or body.submitted_at)
        made = await self._ownership.claim(
            id, token, records.encode(body), request=request, tenant=body.tenant, dispatched=dispatched
        )
        self._note(made.record)
        return made

    async def reopen(self, seen: Record, token: str, body: JobBody, request: bytes) -> tuple[bool, Record | None]:
        """Claim what failed, or met a void, for another try: of the same attempt only where it was refused."""
        again = seen.state is not ClaimState.REFUSED
        body = msgspec.structs.replace(body, history=records.job_body(seen).history)
        body = self._stepped(body, ClaimState.CLAIMED, seen.attempt + again, seen=seen)
        return await self._ownership.reopen(
            seen,
            token,
            records.encode(body),
            next_attempt=again,
            request=request,
            tenant=body.tenant,
        )

    async def restore(self, id: str, attempt: int, body: JobBody) -> Record:
        """Write the record of a run that was found by its fence, where there is none."""
        _, record = await self._store.restore(
            id,
            ClaimState.RUNNING,
            attempt=attempt,
            token=identity.random_token(),
            body=records.encode(body),
            tenant=body.tenant,
        )
        return record

    async def request_cancel(self, id: str) -> Record | None:
        """Note that a caller wants the job cancelled."""
        return (await self._store.request_cancel(id))[1]

    # -- the owner's

    async def settle(self, mine: Record, state: ClaimState, body: JobBody) -> Record | None:
        """The owner writes how its attempt went; tried for as long as the store is away."""
        await failpoints.reach(failpoints.BEFORE_SETTLE)
        body = self._stepped(body, state, mine.attempt, seen=mine)
        record = await self._ownership.settle(
            mine,
            state,
            records.encode(body),
            ttl=None if state.active else self._retention,
            look_in=POLL_BY_OTHERS if state is ClaimState.ACCEPTED else 0.0,
            ended=_ended_as(mine, state, body),
        )
        if record is not None and not record.state.active:
            await self._ended(record, body)
        return record

    async def accept(self, mine: Record, body: JobBody, engine_id: str) -> Record | None:
        """The engine took the command."""
        await failpoints.reach(failpoints.AFTER_DISPATCH)
        return await self.settle(mine, ClaimState.ACCEPTED, msgspec.structs.replace(body, engine_id=engine_id))

    # -- anybody's

    async def apply(self, seen: Record, change: Change) -> Record:
        """Write what was found; the record as it is now, whoever wrote it."""
        if change.settled is not None:
            self._telemetry.reconciled(change.settled)
        self._note(seen)
        body = msgspec.structs.replace(change.body, polled_at=seen.now / 1000)
        if change.state is not seen.state:
            body = self._stepped(body, change.state, seen.attempt, seen=seen)
        done, now = await (self._advance if change.state.active else self._finish)(seen, change, body)
        if now is not None:
            self._ownership.tell(now, notify=change.notify or not done)
            if not now.state.active:
                await self._ended(now, body, count=done)
        return now or seen

    async def _advance(self, seen: Record, change: Change, body: JobBody) -> tuple[bool, Record | None]:
        if change.streams is not None:
            await self._store.put_streams(seen.id, change.streams, ttl=self._retention)
        return await self._store.advance(
            seen,
            change.state,
            body=records.encode(body),
            append=change.append,
            append_stderr=change.append_stderr,
            notify=change.notify,
            look_in=pacing.next_poll(seen, change.state, body),
        )

    async def _finish(self, seen: Record, change: Change, body: JobBody) -> tuple[bool, Record | None]:
        fences, before = change.state is ClaimState.CLOSED and body.fenced, records.job_body(seen)
        return await self._store.finish(
            seen,
            change.state,
            body=records.encode(body),
            ttl=self._retention,
            append=change.append,
            append_stderr=change.append_stderr,
            kept=before.end > 0,
            kept_stderr=before.stderr_end > 0,
            streams=change.streams,
            clean_in=self._retention + CLEAN_MARGIN if fences else None,
            ended=_ended_as(seen, change.state, body),
        )

    async def abandon(self, seen: Record) -> tuple[bool, Record]:
        """The lease of a replica ran out: nothing was sent, or nobody knows."""
        body = changed = records.job_body(seen)
        if seen.state is ClaimState.CLAIMED:
            if seen.cancel:
                return False, await self._cancel_abandoned(seen, body)
            told = "The replica at work ended before it sent anything."
            changed = decisions.unavailable(body, Reason.REPLICA_LOST, told)
        after = ClaimState.REFUSED if seen.state is ClaimState.CLAIMED else ClaimState.UNKNOWN
        changed = self._stepped(changed, after, seen.attempt, seen=seen)
        done, now = await self._store.abandon(
            seen, body=records.encode(changed), ttl=self._retention, tenant=body.tenant
        )
        if now is not None and not now.state.active:
            await self._ended(now, body)
        return done, now or seen

    async def _cancel_abandoned(self, seen: Record, body: JobBody) -> Record:
        ours, now = await self._ownership.take_over(seen, identity.random_token())
        if ours and now is not None:
            now = await self.settle(now, ClaimState.CLOSED, decisions.cancelled(body))
        return now or seen

    def dispatching(self, mine: Record, body: JobBody) -> JobBody:
        """The body of a claim that is to be dispatched."""
        return self._stepped(body, ClaimState.DISPATCHED, mine.attempt, seen=mine)

    # -- steps

    def _stepped(
        self, body: JobBody, state: ClaimState, attempt: int, *, seen: Record | None = None, at: float | None = None
    ) -> JobBody:
        """``body`` with this step, now or ``at``; the store's time is reckoned, not asked for."""
        least = 0.0 if seen is None else seen.now / 1000
        now = max(least, asyncio.get_running_loop().time() + self._ahead) if at is None else at
        return records.stepped(body, now, state, attempt, self._ownership.owner)

    def _note(self, record: Record) -> None:
        self._ahead = record.now / 1000 - asyncio.get_running_loop().time()

    async def _ended(self, record: Record, body: JobBody, *, count: bool = True) -> None:
        """Nothing of the job holds anything any more."""
        if count:
            kind: Kind = "exec" if body.kind == "exec" else "job"
            self._telemetry.ended(kind, records.job_state(record, body).value)
        self._expiry.job_ended(body.sandbox_id)
        await self._quotas.free_job(body.tenant, record.id)


def _ended_as(seen: Record, state: ClaimState, body: JobBody) -> Ended | None:
    """What is counted for the tenant with a write of ``state``."""
    if state.active:
        return None
    after = msgspec.structs.replace(seen, state=state)
    return Ended(body.tenant, records.job_state(after, body).value)
