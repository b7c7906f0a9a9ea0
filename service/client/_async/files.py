"""The asynchronous handle of a sandbox's files."""

# ruff: noqa: TID252  (relative, so that the client also works under the name that `oncebox.py` gives it)
from __future__ import annotations

import contextlib
import io
import os
from collections.abc import AsyncIterator
from tempfile import SpooledTemporaryFile
from typing import IO

from ...errors import FileNotFound, IsADirectory
from ...messages import File as FileInfo
from ...messages import Job as JobInfo
from ...messages import Unpacked
from ..calls import Calls
from ..driver import AsyncDriver
from ..file_calls import FileCalls, FilePart
from ..transfers import (
    IN_MEMORY,
    Content,
    LocalPath,
    Progress,
    Receiver,
    conditions,
    content_of,
    is_directory,
    local_content,
    octal,
    replaced,
    unpack,
)
from .job import AsyncJob


class AsyncFiles:
    """The files of a sandbox: ``sandbox.files``.

    Paths are in the sandbox, absolute or relative to its working directory. Every call is tried again after transient
    faults: an upload takes its name only when it is whole, and a download goes on where it stood.

    ``user`` (a name, ``uid`` or ``uid:gid``): with whose rights, and whose the files that are made will be; None: the
    rights of the sandbox's daemon. ``progress``: a function of the bytes so far and of all (None where that is not
    known).
    """

    def __init__(self, calls: Calls, driver: AsyncDriver, sandbox_id: str) -> None:
        self._calls = calls
        self._files = FileCalls(calls.terms, sandbox_id)
        self._driver = driver

    async def write(
        self,
        path: str,
        data: bytes | str | IO[bytes],
        *,
        mode: str | int | None = None,
        user: str | None = None,
        if_match: str | None = None,
        create: bool = False,
        progress: Progress | None = None,
    ) -> FileInfo:
        """Writes a file, whole or not at all; directories on the way are made.

        Args:
            data: bytes, text (written as UTF-8), or an open binary file, from where it stands.
            mode: such as ``"0755"``, or ``0o755``; None: 0644, or what the file had before.
            if_match: an entity tag, as ``ETag`` of a GET has it: only in place of just that content.
            create: only where nothing is there.

        Raises:
            PreconditionFailed: something else is there. After a lost connection it may be what this call wrote.
            FilePermissionDenied, IsADirectory, NotADirectory, NotAFile, FileTooLarge, DiskFull: nothing was changed.
            SandboxNotFound, SandboxNotRunning, InvalidRequest: nothing was changed.
        """
        with content_of(data, progress) as content:
            return await self._put(path, content, mode, user, conditions(if_match, create=create))

    async def upload(
        self,
        local: LocalPath | IO[bytes],
        path: str,
        *,
        mode: str | int | None = None,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> FileInfo | Unpacked:
        """Sends a local file, an open one, or a directory: what lies in it then lies in the directory ``path``.

        Returns:
            The file; of a directory, how many members and bytes were sent.

        Raises:
            OSError: the local file can't be read.
            CommandFailed: a directory could not be unpacked; the same call again completes it.
            OnceboxError: as in :meth:`write`.
        """
        if not isinstance(local, str | os.PathLike):
            return await self.write(path, local, mode=mode, user=user, progress=progress)
        with local_content(local, progress) as (content, archived):
            if archived is None:
                return await self._put(path, content, mode, user, {})
            await self._unpack(path, content, user)
            return archived

    async def read(self, path: str, *, user: str | None = None) -> bytes:
        """The bytes of a file.

        Raises:
            FileNotFound, FilePermissionDenied, IsADirectory, NotAFile: there is nothing to be read.
            SandboxNotFound, SandboxNotRunning: the sandbox can't be asked.
        """
        file = io.BytesIO()
        await self._driver.run(self._files.read(path, Receiver(file), user=user))
        return file.getvalue()

    async def read_part(self, path: str, *, offset: int, length: int, user: str | None = None) -> FilePart:
        """At most ``length`` bytes of a file from ``offset`` on, and the file's size; otherwise as :meth:`read`.

        Raises:
            RangeNotSatisfiable: the file has no more than ``offset`` bytes.
        """
        return await self._driver.run(self._files.part(path, offset=offset, length=length, user=user))

    async def read_text(
        self, path: str, *, encoding: str = "utf-8", errors: str = "strict", user: str | None = None
    ) -> str:
        """The characters of a file; otherwise as :meth:`read`. ``encoding`` and ``errors`` as of ``bytes.decode``."""
        return (await self.read(path, user=user)).decode(encoding, errors)

    async def download(
        self,
        path: str,
        local: LocalPath | IO[bytes],
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Fetches a file into a local one, which takes its name when it is whole, or into an open one.

        A directory's files go into the local directory ``local``, which is made; what would lie outside of it is
        refused.

        Returns:
            The bytes that came (of a directory: of its archive).

        Raises:
            OSError: the local file can't be written.
            tarfile.FilterError: a directory has what would lie outside of ``local``.
            OnceboxError: as in :meth:`read`.
        """
        if not isinstance(local, str | os.PathLike):
            return await self._driver.run(self._files.read(path, Receiver(local, progress=progress), user=user))
        if not is_directory(local):
            with contextlib.suppress(IsADirectory), replaced(local) as file:
                receiver = Receiver(file, progress=progress)
                return await self._driver.run(self._files.read(path, receiver, user=user))
        with SpooledTemporaryFile(IN_MEMORY) as archive:
            received = await self.pack(path, archive, user=user, progress=progress)
            archive.seek(0)
            unpack(archive, local)
        return received

    async def unpack(
        self,
        path: str,
        archive: bytes | IO[bytes],
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Unpacks a tar, plain or gzipped, into a directory, which is made where it is not there.

        Raises:
            InvalidRequest: something in it leads outside, or it is no tar; nothing was unpacked.
            CommandFailed: not all of it could be unpacked; the same call again completes it.
            OnceboxError: as in :meth:`write`.
        """
        with content_of(archive, progress) as content:
            await self._unpack(path, content, user)

    async def pack(
        self, path: str, archive: IO[bytes], *, user: str | None = None, progress: Progress | None = None
    ) -> int:
        """Writes a tar of what lies in a directory to an open binary file.

        Returns:
            Its bytes.

        Raises:
            FileNotFound, FilePermissionDenied, NotADirectory: there is nothing to be packed.
        """
        return await self._driver.run(self._files.pack(path, Receiver(archive, progress=progress), user=user))

    async def list(
        self, path: str = ".", *, user: str | None = None, page_size: int | None = None
    ) -> AsyncIterator[FileInfo]:
        """What lies in a directory, by name, page by page.

        Args:
            page_size: items a request, at most 200.

        Raises:
            FileNotFound, FilePermissionDenied, NotADirectory: there is nothing to be listed.
        """
        token: str | None = None
        while True:
            page = await self._driver.run(self._files.list(path, user=user, page_size=page_size, token=token))
            for item in page.items:
                yield item
            token = page.next_page_token
            if token is None:
                return

    async def info(self, path: str, *, user: str | None = None) -> FileInfo:
        """What stands under ``path``: its type, size, mode and time, and a link's target.

        Raises:
            FileNotFound, FilePermissionDenied: it can't be seen.
        """
        return await self._driver.run(self._files.info(path, user=user))

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Whether something stands under ``path``, be it a link that leads nowhere."""
        try:
            await self.info(path, user=user)
        except FileNotFound:
            return False
        return True

    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Removes a file, a link, or an empty directory; ``recursive``: with all that is in it. Again is fine.

        Raises:
            DirectoryNotEmpty: it has something in it.
            FilePermissionDenied: it may not be removed.
        """
        await self._driver.run(self._files.remove(path, recursive=recursive, user=user))

    async def mkdir(self, path: str, *, mode: str | int | None = None, user: str | None = None) -> FileInfo:
        """Makes a directory, and those on the way to it. One that is there already is fine.

        Raises:
            NotADirectory: something else is there.
        """
        return await self._driver.run(self._files.make_directory(path, mode=octal(mode), user=user))

    async def _put(
        self, path: str, content: Content, mode: str | int | None, user: str | None, conditions: dict[str, str]
    ) -> FileInfo:
        return await self._driver.run(
            self._files.write(path, content, mode=octal(mode), user=user, conditions=conditions)
        )

    async def _unpack(self, path: str, content: Content, user: str | None) -> None:
        done = await self._driver.run(self._files.unpack(path, content, user=user))
        if isinstance(done, JobInfo):
            await AsyncJob(self._calls, self._driver, done.command_id, done).result(check=True)
