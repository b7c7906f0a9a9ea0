"""Conditional requests for files (RFC 9110, 13). Pure."""

from __future__ import annotations

import re
from email.utils import formatdate

import msgspec

from service.core.files.paths import Stat
from service.errors import InvalidRequest, PreconditionFailed

_TAGS = re.compile(r'[ \t]*(?:W/)?"[!#-~\x80-\xff]*"[ \t]*(?:,[ \t]*(?:W/)?"[!#-~\x80-\xff]*"[ \t]*)*')
_TAG = re.compile(r'(?:W/)?"[^"]*"')


class Conditions(msgspec.Struct, frozen=True):
    """The headers of a request, as they came; None: not sent."""

    if_match: str | None = None
    if_none_match: str | None = None
    if_range: str | None = None

    def for_put(self, there: Stat | None) -> str:
        """What the file must still be when it is replaced: nothing, ``none``, or its ``stat``.

        Raises ``PreconditionFailed`` where it is not so now.
        """
        wanted = ""
        if self.if_match is not None:
            if there is None or not _names(self.if_match, there.etag, "if-match", weak=False):
                raise PreconditionFailed("The file is not what If-Match asked for; nothing was changed.")
            wanted = there.text if self.if_match.strip() != "*" else ""
        if self.if_none_match is not None:
            if there is not None and _names(self.if_none_match, there.etag, "if-none-match", weak=True):
                raise PreconditionFailed("The file is what If-None-Match excludes; nothing was changed.")
            wanted = wanted or ("none" if there is None else there.text)
        return wanted

    def unchanged(self, there: Stat) -> bool:
        """The reader has it already: 304. Raises ``PreconditionFailed`` for ``If-Match``."""
        if self.if_match is not None and not _names(self.if_match, there.etag, "if-match", weak=False):
            raise PreconditionFailed("The file is not what If-Match asked for.")
        return self.if_none_match is not None and _names(self.if_none_match, there.etag, "if-none-match", weak=True)

    def range_counts(self, there: Stat) -> bool:
        """``If-Range`` names this very content, by its tag or by the time that was told of it; or was not sent."""
        if self.if_range is None:
            return True
        given = self.if_range.strip()
        return given in (there.etag, http_date(there))


def http_date(there: Stat) -> str:
    """``Last-Modified``."""
    return formatdate(min(max(there.mtime // 10**9, 0), 253_402_300_799), usegmt=True)


def _names(header: str, etag: str, field: str, *, weak: bool) -> bool:
    if header.strip() == "*":
        return True
    if not _TAGS.fullmatch(header):
        raise InvalidRequest.of(field, 'must be * or entity tags, such as "abc"')
    tags = _TAG.findall(header)
    return etag in ([tag.removeprefix("W/") for tag in tags] if weak else tags)
