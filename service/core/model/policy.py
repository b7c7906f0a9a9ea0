"""What a tenant may do. Pure; the tenants file is read elsewhere (`service.tenants`)."""

from __future__ import annotations

from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

_Count = Annotated[int, Meta(ge=0)]
_Rate = Annotated[float, Meta(gt=0)]


class Quota(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of one tenant over all replicas; None: no limit."""

    sandboxes: _Count | None = None
    """Live sandboxes."""
    jobs: _Count | None = None
    """Running jobs and execs."""
    submits_per_second: _Rate | None = None
    """POSTs that make something."""
    polls_per_second: _Rate | None = None
    """All other requests."""


class Policy(Protocol):
    """What tenants may do."""

    def may_use(self, tenant: str, owner: str) -> bool:
        """Whether the tenant may mount this owner's directories."""
        ...

    def quota(self, tenant: str) -> Quota:
        """The tenant's limits."""
        ...

    async def watch(self) -> None:
        """Keep up with changes, for as long as there may be any."""
        ...


class OneTenant:
    """No keys are configured: the one tenant may do everything."""

    def may_use(self, tenant: str, owner: str) -> bool:
        """Always."""
        return True

    def quota(self, tenant: str) -> Quota:
        """None."""
        return Quota()

    async def watch(self) -> None:
        """Nothing changes here."""
