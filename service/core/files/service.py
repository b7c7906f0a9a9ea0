"""The use cases around files, each for a sandbox of the tenant that asks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from service.core.files.archive import Archives, Packing
from service.core.files.conditions import Conditions
from service.core.files.listing import Lists
from service.core.files.names import Names
from service.core.files.read import Found, Reads
from service.core.files.transfers import Transfers
from service.core.files.upload import Uploads, Written
from service.core.limits.room import Share
from service.core.sandboxes.access import Access
from service.messages import File, FilePage, Job, Unpacked


class Files:
    """For one replica. All raise ``SandboxNotFound``, and the problems that `shell` has for what a sandbox says."""

    def __init__(
        self,
        access: Access,
        transfers: Transfers,
        uploads: Uploads,
        reads: Reads,
        lists: Lists,
        names: Names,
        archives: Archives,
    ) -> None:
        self._access = access
        self._transfers = transfers
        self._uploads = uploads
        self.reads = reads
        self._lists = lists
        self._names = names
        self._archives = archives

    async def put(
        self,
        tenant: str,
        sandbox_id: str,
        path: str,
        body: AsyncIterator[bytes],
        *,
        length: int | None,
        mode: str | None,
        user: str | None,
        conditions: Conditions,
        share: Share,
    ) -> Written:
        """Write a file, whole or not at all; see `upload`."""
        async with self._transfers.of(tenant, sandbox_id):
            return await self._uploads.put(
                sandbox_id,
                path,
                body,
                length=length,
                mode=mode,
                user=user,
                conditions=conditions,
                share=share,
            )

    @contextlib.asynccontextmanager
    async def open(
        self, tenant: str, sandbox_id: str, path: str, *, user: str | None, read: bool
    ) -> AsyncIterator[Found]:
        """A file that is read while the block lasts; see `read`."""
        async with (
            self._transfers.of(tenant, sandbox_id),
            self.reads.of(sandbox_id, path, user=user, read=read) as found,
        ):
            yield found

    async def unpack(
        self,
        tenant: str,
        sandbox_id: str,
        path: str,
        body: AsyncIterator[bytes],
        *,
        length: int | None,
        user: str | None,
        share: Share,
    ) -> Unpacked | Job:
        """Unpack a tar into a directory; see `archive`."""
        async with self._transfers.of(tenant, sandbox_id):
            return await self._archives.unpack(tenant, sandbox_id, path, body, length=length, user=user, share=share)

    @contextlib.asynccontextmanager
    async def pack(self, tenant: str, sandbox_id: str, path: str, *, user: str | None) -> AsyncIterator[Packing]:
        """The tar of a directory, while the block lasts; see `archive`."""
        async with (
            self._transfers.of(tenant, sandbox_id),
            self._archives.pack(sandbox_id, path, user=user) as packing,
        ):
            yield packing

    async def info(self, tenant: str, sandbox_id: str, path: str, *, user: str | None) -> File:
        """What stands under a path; a link itself."""
        await self._access.known(tenant, sandbox_id)
        return await self._names.info(sandbox_id, path, user=user)

    async def list(
        self,
        tenant: str,
        sandbox_id: str,
        path: str,
        *,
        user: str | None,
        page_size: int,
        page_token: str | None,
    ) -> FilePage:
        """A page of a directory; see `listing`."""
        await self._access.known(tenant, sandbox_id)
        return await self._lists.page(sandbox_id, path, user=user, page_size=page_size, page_token=page_token)

    async def make_directory(
        self, tenant: str, sandbox_id: str, path: str, *, mode: str | None, user: str | None
    ) -> tuple[File, bool]:
        """The directory, and whether it was made."""
        await self._access.known(tenant, sandbox_id)
        return await self._names.make_directory(sandbox_id, path, mode=mode, user=user)

    async def remove(self, tenant: str, sandbox_id: str, path: str, *, recursive: bool, user: str | None) -> None:
        """Remove what stands under a path; not there: fine."""
        await self._access.known(tenant, sandbox_id)
        await self._names.remove(sandbox_id, path, recursive=recursive, user=user)
