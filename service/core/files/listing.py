"""A directory's names, a page at a time."""

from __future__ import annotations

import re

from service.core.files import paths, scripts
from service.core.files.shell import Said, Shell, garbled
from service.core.model import tokens
from service.errors import InvalidRequest
from service.messages import File, FilePage

SLOW = 50.0
"""Seconds for a page: 100,000 names are read and sorted for each."""

_TOKEN = re.compile(r"((?:[0-9a-f]{2}){1,255})")


class Lists:
    """Lists directories. ``shell`` runs the script."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def page(
        self, sandbox_id: str, path: str, *, user: str | None, page_size: int, page_token: str | None
    ) -> FilePage:
        """What lies in a directory, by the bytes of the names (a line end in one counts as ``/``), from ``page_token``
        on.

        A page may hold fewer than ``page_size``, where names are long. Names that come or go meanwhile move no others.
        Raises ``FileNotFound``, ``NotADirectory``, ``FilePermissionDenied``, ``InvalidRequest`` for more than
        ``MOST_NAMES``.
        """
        path = paths.checked(path)
        who = await self._shell.user(sandbox_id, user)
        said = await self._shell.run(
            sandbox_id,
            scripts.LIST,
            path=path,
            user=who,
            timeout=SLOW,
            PAGE=str(page_size),
            AFTER=_after(page_token),
        )
        items = parse_page(said, paths.shown(path, said.data("base"), said.data("where")))
        more = "more" in said and items
        return FilePage(items=[item for _, item in items], next_page_token=_token(items[-1][0]) if more else None)


def _after(token: str | None) -> str:
    """The line that a token stands for, as the script reads it. Raises ``InvalidRequest``."""
    if token is None:
        return ""
    match = tokens.unpack(token, _TOKEN)
    if match is None:
        raise InvalidRequest.of("page_token", "is no token that this service made")
    return "".join(f"\\{byte:03o}" for byte in bytes.fromhex(match[1]))


def _token(name: bytes) -> str:
    return tokens.pack(name.replace(b"\n", b"/").hex())


def parse_page(said: Said, directory: bytes) -> list[tuple[bytes, File]]:
    """Names and what they are: lines of ``stat`` with ``./NAME`` behind them, NUL, then NAME NUL TARGET NUL.

    ``/`` stands in no name, and in no line of ``stat``'s, so what follows one up to the line before the next is a name.
    """
    listed, _, links = said.data("page").partition(b"\0")
    fields = links.split(b"\0")
    targets = dict(zip(fields[::2], fields[1::2], strict=False))
    pieces = listed.split(b"/")
    found = []
    line = pieces[0]
    for piece in pieces[1:]:
        name, _, following = piece.rpartition(b"\n")
        try:
            seen = paths.parse_stat(line.removesuffix(b".").decode("ascii"))
        except ValueError:
            raise garbled() from None
        below = directory.rstrip(b"/") + b"/" + name
        found.append((name, paths.file_of(below, seen, targets.get(name))))
        line = following
    return found
