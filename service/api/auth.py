"""Who is asking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

DEFAULT_TENANT = "default"
"""The one tenant where no API keys are configured."""


class Authenticator(Protocol):
    """Tells callers apart by the headers of their requests."""

    def authenticate(self, headers: Mapping[str, Sequence[str]]) -> str:
        """The tenant's name. ``headers`` by lower-case name. Raises ``Unauthenticated``."""
        ...


class NoKeys:
    """No API keys: whoever reaches the service is the one tenant."""

    def authenticate(self, headers: Mapping[str, Sequence[str]]) -> str:
        """Always the same."""
        return DEFAULT_TENANT
