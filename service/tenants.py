"""The tenants file (``ONCEBOX_TENANTS``): who the API keys belong to, and what each tenant may do.

::

    [acme]
    keys = ["<sha256 of a key, hex>"]  # several, for rotation
    owners = ["alice", "team-*"]  # absent: only its own name
    [acme.quota]
    sandboxes = 100  # live
    jobs = 200  # running
    submits_per_second = 20
    polls_per_second = 500

The file is read again when it changes and on SIGHUP, without dropping a request, in a thread: a mount that hangs holds
up nothing. A broken file, or one that does not answer, keeps what was read before, and says so.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import os
import re
import secrets
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from service import audit, blocking
from service.core.model.policy import Quota
from service.errors import Unauthenticated
from service.settings import Settings, SettingsError

log = logging.getLogger("oncebox.tenants")

CHECK_EVERY = 2.0
"""Seconds between two looks at whether the file changed."""
ANSWERS = 10.0
"""Seconds in which a file's mount should answer; one that does not is waited for, and complained about."""
KEY_PREFIX = "obx_"

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PATTERN = re.compile(r"[A-Za-z0-9._@*?-]{1,128}")
_Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class Tenant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One table of the file."""

    keys: Annotated[list[_Digest], Meta(min_length=1)]
    owners: list[str] | None = None
    quota: Quota = Quota()


class TenantsFileBroken(Exception):
    """The file can't be used; the message says where and why, without a key in it."""


def parse(text: str) -> dict[str, Tenant]:
    """The tenants of a file's text. Raises ``TenantsFileBroken``."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TenantsFileBroken(f"it is no TOML: {error}") from error
    tenants = {}
    owner_of: dict[str, str] = {}
    for name, table in tables.items():
        if not _NAME.fullmatch(name):
            raise TenantsFileBroken(f"[{name[:80]}] is no tenant's name: 1 to 63 letters, digits, '-', '_', '.'")
        try:
            tenant = msgspec.convert(table, Tenant)
        except msgspec.ValidationError as error:
            raise TenantsFileBroken(f"[{name}]: {error}") from error
        for pattern in tenant.owners or []:
            if not _PATTERN.fullmatch(pattern):
                raise TenantsFileBroken(f"[{name}]: {pattern[:80]!r} is no owner and no pattern of owners")
        for key in tenant.keys:
            if owner_of.setdefault(key, name) != name:
                raise TenantsFileBroken(f"[{name}] and [{owner_of[key]}] have a key in common")
        tenants[name] = tenant
    if not tenants:
        raise TenantsFileBroken("it names no tenant, so nobody could do anything")
    return tenants


_Stamp = tuple[int, int, int]
"""When it changed, which file it is, its size."""
_Read = tuple[_Stamp | None, dict[str, Tenant] | TenantsFileBroken | None]


class Tenants:
    """The tenants by their file; tells callers apart, and knows what they may do."""

    def __init__(self, path: str) -> None:
        """Raises ``TenantsFileBroken``: a replica does not start with a file that it can't read."""
        self._path = Path(path)
        self._stamp = self._stat()
        self._tenants = self._read()
        self._reading: asyncio.Future[_Read] | None = None
        """Under way, in a thread: one at a time, so that a mount that hangs holds one thread."""

    def _read(self) -> dict[str, Tenant]:
        try:
            return parse(blocking.read_file(self._path))
        except OSError as error:
            raise TenantsFileBroken(f"it can't be read: {error.strerror or error}") from error
        except UnicodeDecodeError as error:
            raise TenantsFileBroken(f"it can't be read: {error}") from error

    def _read_again(self, seen: _Stamp | None, *, always: bool) -> _Read:
        """In a thread: the file as it is now; None in place of tenants where it is as it was ``seen``."""
        stamp = self._stat()
        if stamp == seen and not always:
            return stamp, None
        try:
            return stamp, self._read()
        except TenantsFileBroken as error:
            return stamp, error

    def _stat(self) -> _Stamp | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    async def reload(self, *, always: bool = True) -> bool:
        """Read the file again (only where it changed, unless ``always``); False, and all as before, where it is
        broken, or does not answer."""
        if self._reading is None:
            self._reading = blocking.started(lambda: self._read_again(self._stamp, always=always), "tenants file")
        reading = self._reading
        if not (await asyncio.wait({reading}, timeout=ANSWERS))[0]:
            log.error("the tenants file does not answer (a mount that hangs?); what was read before stays in force")
            return False
        if self._reading is not reading:
            return True  # somebody else who waited for it has taken it over
        self._reading = None
        self._stamp, found = reading.result()
        if isinstance(found, TenantsFileBroken):
            log.error("the tenants file was not taken over, the one before stays in force: %s", found)
            audit.record("tenants.reload", "refused")
            return False
        if found is not None:
            self._tenants = found
            log.info("the tenants file was read: %d tenants", len(self._tenants))
            audit.record("tenants.reload", "done", tenants=len(self._tenants))
        return True

    async def watch(self) -> None:
        """Read the file again whenever it changes, for ever."""
        while True:
            await asyncio.sleep(CHECK_EVERY)
            await self.reload(always=False)

    def __len__(self) -> int:
        return len(self._tenants)

    # -- who is asking

    def authenticate(self, headers: Mapping[str, Sequence[str]]) -> str:
        """The tenant whose key the request carries. Raises ``Unauthenticated``."""
        values = headers.get("authorization", [])
        scheme, _, key = values[0].partition(" ") if len(values) == 1 else ("", "", "")
        if scheme.lower() != "bearer" or not key.strip():
            raise Unauthenticated("Send your API key as 'Authorization: Bearer <key>'.")
        tenant = self._holder(key_digest(key.strip()))
        if tenant is None:
            raise Unauthenticated("This API key is not known.")
        return tenant

    def _holder(self, digest: str) -> str | None:
        """Compared with every key, in constant time each."""
        holder = None
        for name, tenant in self._tenants.items():
            for key in tenant.keys:
                if hmac.compare_digest(key, digest):
                    holder = name
        return holder

    # -- what they may do

    def may_use(self, tenant: str, owner: str) -> bool:
        """Whether the tenant may mount this owner's directories."""
        known = self._tenants.get(tenant)
        if known is None:
            return False
        if known.owners is None:
            return owner == tenant
        return any(fnmatchcase(owner, pattern) for pattern in known.owners)

    def quota(self, tenant: str) -> Quota:
        """The tenant's limits; nothing at all for one that is no longer in the file."""
        known = self._tenants.get(tenant)
        return known.quota if known is not None else Quota(sandboxes=0, jobs=0)


def tenants_of(settings: Settings) -> Tenants | None:
    """The tenants that ``settings`` name; None where they name no file.

    Raises ``SettingsError`` for a file that can't be used.
    """
    if settings.tenants is None:
        return None
    try:
        tenants = Tenants(settings.tenants)
    except TenantsFileBroken as error:
        raise SettingsError(f"ONCEBOX_TENANTS: {settings.tenants} can't be used: {error}.") from error
    if len(tenants) > 1 and not settings.secret:
        log.warning("there are %d tenants and no ONCEBOX_SECRET: labels of sandboxes are not signed", len(tenants))
    return tenants


def key_digest(key: str) -> str:
    """What stands in the file for a key: its sha256 in hex."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def new_key() -> str:
    """A key for a tenant: 256 random bits."""
    return KEY_PREFIX + secrets.token_urlsafe(32)


def lines_for(tenant: str, key: str) -> str:
    """What to add to the file for a new key. Raises ``ValueError`` for what is no tenant's name."""
    if not _NAME.fullmatch(tenant):
        raise ValueError(
            "a tenant's name is 1 to 63 letters, digits, '-', '_', '.', and begins and ends with a letter or digit"
        )
    table = tenant if re.fullmatch(r"[A-Za-z0-9_-]+", tenant) else f'"{tenant}"'
    return f'[{table}]\nkeys = ["{key_digest(key)}"]\n'
