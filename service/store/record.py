"""The form of a claim in Redis: a header line, then the body. ``lua/prelude.lua`` has the fields."""

from service.core.model.states import ClaimState
from service.errors import StoreUnavailable
from service.ports.store import Record

VERSION = b"1"
_FIELDS = 9
NOBODY = "-"
"""Stands for no owner."""


def unreadable(id: str) -> StoreUnavailable:
    """A claim of another form is left alone: a newer replica wrote it, and it knows what to do with it."""
    return StoreUnavailable(
        f"The record of {id} was written by another version of Oncebox, which this one can't read.",
        retry_after=5,
    )


def parse(id: str, raw: bytes, now: int) -> Record:
    """The record that stands in ``raw``. Raises ``StoreUnavailable`` for a form that is not known here."""
    header, line_end, body = raw.partition(b"\n")
    fields = header.split(b" ")
    if not line_end or len(fields) != _FIELDS or fields[0] != VERSION:
        raise unreadable(id)
    try:
        owner = fields[8].decode()
        return Record(
            id=id,
            state=ClaimState(fields[1].decode()),
            epoch=int(fields[2]),
            attempt=int(fields[3]),
            revision=int(fields[4]),
            lease_until=int(fields[5]),
            cancel=fields[6] == b"1",
            token=fields[7].decode(),
            owner="" if owner == NOBODY else owner,
            body=body,
            now=now,
        )
    except ValueError as error:
        raise unreadable(id) from error


def word(name: str, value: str) -> str:
    """``value`` as a field of the header: visible ASCII without blanks, not empty."""
    if not value or not value.isascii() or not value.isprintable() or " " in value:
        raise ValueError(f"{name} must be visible ASCII without blanks, not {value!r}")
    return value
