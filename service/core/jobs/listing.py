"""Lists of jobs, newest first."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

import msgspec

from service import errors
from service.core import records
from service.core.limits.room import ROW, UNBOUNDED, Share
from service.core.model import tokens, validation
from service.core.model.labels import has_text, matches, pairs
from service.core.records import JobBody
from service.core.telemetry import Telemetry
from service.messages import Job, JobPage, JobState
from service.ports.store import JobRow, Record, Store, Unreadable

log = logging.getLogger("oncebox.jobs")

LIST_READ = 200
"""Records read in one go for a list."""
LOOKED_AT = 1000
"""Records that one list request looks at."""

_TOKEN = re.compile(r"([0-9]{1,16}) (cmd_[A-Za-z0-9_-]+)")


class Wanted(msgspec.Struct, frozen=True):
    """What a list is filtered by; nothing that is empty counts."""

    states: frozenset[JobState] = frozenset()
    metadata: Mapping[str, str] = {}
    kind: str | None = None
    text: str = ""
    """Part of a job's id, command, sandbox or metadata, in any letter case."""

    @property
    def empty(self) -> bool:
        """There is no filter."""
        return not (self.states or self.metadata or self.kind or self.text)

    def matches(self, record: Record, body: JobBody) -> bool:
        """Whether a job is to be shown."""
        return (
            (not self.states or records.job_state(record, body) in self.states)
            and matches(body.metadata, self.metadata)
            and self.kind in (None, body.kind)
            and has_text(self.text, record.id, body.command, body.sandbox_id, *pairs(body.metadata))
        )


ALL = Wanted()


class JobList:
    """Lists jobs."""

    def __init__(self, store: Store, telemetry: Telemetry) -> None:
        self._store = store
        self._telemetry = telemetry

    async def page(
        self,
        tenant: str,
        *,
        sandbox_id: str | None,
        wanted: Wanted = ALL,
        page_size: int,
        page_token: str | None,
        share: Share = UNBOUNDED,
    ) -> JobPage:
        """Newest first. Pages neither repeat nor skip while jobs come; one request looks at ``LOOKED_AT`` records.

        Raises ``RateLimited`` where ``share`` finds no room.
        """
        wanted = msgspec.structs.replace(wanted, metadata=validation.metadata_filter(wanted.metadata))
        before = _parse_token(page_token)
        items: list[Job] = []
        looked = 0
        at_once = min(page_size, LIST_READ) if wanted.empty else LIST_READ
        await share.hold((at_once + page_size) * ROW)
        while True:
            rows = await self._store.jobs(
                tenant=tenant, sandbox_id=sandbox_id, before=before, limit=min(at_once, LOOKED_AT - looked)
            )
            for row, record in zip(rows, await self._store.get_readable([row.command_id for row in rows]), strict=True):
                before = row
                looked += 1
                if (job := self._listed(record, tenant, wanted)) is not None:
                    items.append(job)
                    if len(items) == page_size:
                        return JobPage(items=items, next_page_token=_token(row))
                elif record is None and await self._store.now() - row.at > 60_000:
                    await self._store.unlist_job(row.command_id, tenant=tenant)
            if not rows:
                return JobPage(items=items)
            if looked >= LOOKED_AT and before is not None:
                return JobPage(items=items, next_page_token=_token(before))

    def _listed(self, record: Record | Unreadable | None, tenant: str, wanted: Wanted) -> Job | None:
        """The job as a list shows it; None: it is not to be shown. One that can't be read is left out, and counted."""
        if record is None:
            return None
        try:
            if not isinstance(record, Unreadable):
                body = records.job_body(record)
                return records.job_view(record) if body.tenant == tenant and wanted.matches(record, body) else None
        except errors.StoreUnavailable:
            pass
        log.warning("job %s is left out of a list: its record can't be read", record.id)
        self._telemetry.unreadable()
        return None


def _token(row: JobRow) -> str:
    return tokens.pack(f"{row.at} {row.command_id}")


def _parse_token(text: str | None) -> JobRow | None:
    if text is None:
        return None
    match = tokens.unpack(text, _TOKEN)
    if match is not None:
        return JobRow(int(match[1]), match[2])
    raise errors.InvalidRequest.of("page_token", "is no token that this service made")
