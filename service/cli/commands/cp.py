"""``oncebox cp``: files and directories into a sandbox, and out of it, with the habits of ``docker cp``."""

from __future__ import annotations

import asyncio
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from service.cli.arguments import Command
from service.cli.interrupts import INTERRUPTED, Interrupts
from service.cli.output.progress import Progress
from service.cli.output.tables import size
from service.cli.output.terminal import OutputWriter, print_json, say
from service.cli.problems import Trouble
from service.cli.state import json_option
from service.cli.target import configured_target, connect
from service.errors import FileNotFound, NotADirectory
from service.messages import FileType

if TYPE_CHECKING:
    from service.client import AsyncFiles

STREAM = "-"
"""In place of a local path: a tar on stdin or stdout."""
BAR = 20
"""Characters of the bar."""

_REMOTE = re.compile(r"([^/.:][^/:]*):(.*)", re.DOTALL)
"""``ID:PATH``. What begins with ``/`` or ``.`` is a local path, whatever follows."""


class Place(msgspec.Struct, frozen=True):
    """One side of the copy. ``sandbox_id`` None: it is local."""

    sandbox_id: str | None
    path: str

    @property
    def wants_directory(self) -> bool:
        """It is written as a directory."""
        return self.path.endswith("/")

    @property
    def wants_content(self) -> bool:
        """``DIR/.``: what is in the directory, and not the directory."""
        return self.path.endswith("/.") or self.path == "."


class Copied(msgspec.Struct):
    """What ``--json`` prints: where it went, and how many bytes that were (of an archive, the archive's)."""

    source: str
    destination: str
    bytes: int


def place(text: str) -> Place:
    """``text`` as a place."""
    match = _REMOTE.fullmatch(text)
    return Place(None, text) if match is None else Place(match[1], match[2] or ".")


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  oncebox cp data.csv ID:/work/            # into that directory
  oncebox cp ID:/work/report.pdf .
  oncebox cp src ID:/work                  # /work/src, or /work itself where it is not there yet
  oncebox cp src/. ID:/work                # what is in src
  oncebox cp ID:/work - | tar -tf -        # a tar of what is in /work
  tar -c . | oncebox cp - ID:/work

A relative path in a sandbox begins at its working directory.
""",
)
@click.argument("source", metavar="SRC", type=click.Path())
@click.argument("destination", metavar="DST", type=click.Path())
@click.option("--user", metavar="U", help="With whose rights in the sandbox: a name, UID or UID:GID.")
@json_option
def cp(source: str, destination: str, user: str | None, as_json: bool) -> int:
    """Copy a file or a directory. One of SRC and DST is in a sandbox: ID:PATH. `-` is a tar on stdin or stdout."""
    src, dst = place(source), place(destination)
    if (src.sandbox_id is None) == (dst.sandbox_id is None):
        raise click.UsageError("One of SRC and DST is in a sandbox, as ID:PATH, and the other is not.")
    return asyncio.run(_Copy(src, dst, user).run(Copied(source, destination, 0), as_json=as_json))


def local_directory(source: Place) -> bool:
    """Whether it is a directory. Raises ``Trouble`` where nothing is there."""
    if not os.path.lexists(source.path):
        raise Trouble(f"{source.path}: there is no such file.")
    return Path(source.path).is_dir()


def target_in_sandbox(source: Place, wanted: Place, is_directory: bool, into_directory: bool | None) -> str:
    """Where a local file or directory goes. ``into_directory``: a directory is there; None: nothing is."""
    if into_directory is None:
        if wanted.wants_directory and not is_directory:
            raise Trouble(f"{wanted.path}: there is no such directory in the sandbox.")
        return wanted.path
    if is_directory and not into_directory:
        raise Trouble(f"{wanted.path} is no directory, so a directory can't be copied there.")
    if not into_directory or (is_directory and source.wants_content):
        return wanted.path
    return posixpath.join(wanted.path, Path(source.path).resolve().name)


def local_target(source: Place, wanted: Place, *, is_directory: bool) -> Path:
    """Where a file or a directory of a sandbox goes."""
    local = Path(wanted.path)
    if local.is_dir():
        whole = is_directory and source.wants_content
        return local if whole else local / posixpath.basename(posixpath.normpath(source.path))
    if is_directory and local.exists():
        raise Trouble(f"{wanted.path} is no directory, so a directory can't be copied there.")
    if wanted.wants_directory and not is_directory:
        raise Trouble(f"{wanted.path}: there is no such directory.")
    if is_directory:
        local.mkdir()
    return local


class _Copy:
    def __init__(self, source: Place, destination: Place, user: str | None) -> None:
        self._source = source
        self._destination = destination
        self._user = user
        self._done = 0
        self._total: int | None = None

    async def run(self, copied: Copied, *, as_json: bool) -> int:
        """The exit code. Interrupted, a file that was not whole has not taken its name."""
        with Interrupts(lambda: os._exit(INTERRUPTED)) as interrupts:
            async with connect(configured_target()) as client:
                remote = self._source if self._source.sandbox_id else self._destination
                files = client.sandbox(remote.sandbox_id or "").files
                async with Progress(OutputWriter()) as progress:
                    progress.state = self._state
                    work = asyncio.create_task(self._copy(files))
                    if not await interrupts.outlasted_by(work) and not work.done():
                        work.cancel()
                        await asyncio.wait({work})
                if work.cancelled():
                    say("stopped; a file that was under way is as it was before.")
                    return interrupts.exit_code
                work.result()
        copied.bytes = self._done
        if as_json and self._destination.path != STREAM:
            print_json(copied)
        return 0

    async def _copy(self, files: AsyncFiles) -> None:
        if self._destination.sandbox_id is None:
            await self._fetch(files)
        else:
            await self._send(files)

    # -- into a sandbox

    async def _send(self, files: AsyncFiles) -> None:
        local, remote = self._source, self._destination
        if local.path == STREAM:
            await files.unpack(remote.path, sys.stdin.buffer, user=self._user, progress=self._note)
            return
        is_directory = local_directory(local)
        target = target_in_sandbox(local, remote, is_directory, await self._is_directory(files, remote.path))
        await files.upload(local.path, target, user=self._user, progress=self._note)

    # -- out of a sandbox

    async def _fetch(self, files: AsyncFiles) -> None:
        remote, local = self._source, self._destination
        if local.path == STREAM:
            await files.pack(remote.path, sys.stdout.buffer, user=self._user, progress=self._note)
            sys.stdout.flush()
            return
        is_directory = await self._is_directory(files, remote.path)
        if is_directory is None:
            raise Trouble(f"{remote.path}: there is no such file in the sandbox.")
        target = local_target(remote, local, is_directory=is_directory)
        await files.download(remote.path, target, user=self._user, progress=self._note)

    async def _is_directory(self, files: AsyncFiles, path: str) -> bool | None:
        """Whether a directory is there, or a link to one; None: nothing is."""
        try:
            info = await files.info(path, user=self._user)
            if info.type is FileType.SYMLINK:
                info = await files.info(f"{path.rstrip('/')}/.", user=self._user)
        except FileNotFound:
            return None
        except NotADirectory:
            return False
        return info.type is FileType.DIRECTORY

    # -- how far it is

    def _note(self, done: int, total: int | None) -> None:
        self._done, self._total = done, total

    def _state(self) -> str:
        if not self._total:
            return f"copying {size(self._done)}"
        full = BAR * self._done // self._total
        return f"copying [{'#' * full}{' ' * (BAR - full)}] {size(self._done)} of {size(self._total)}"
