"""What both transports share: where to, and as whom."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from urllib.parse import urlsplit

DEFAULT_URL = "http://127.0.0.1:8700"
CONNECT_TIMEOUT = 10.0
"""Seconds in which a connection must be made."""
SLOW_BODY = 600.0
"""Seconds on top of a request's read timeout in which a whole answer must have come, however it trickles."""


@dataclass(frozen=True, slots=True)
class Target:
    """The service's base URL and the headers that every request carries."""

    url: str
    headers: Mapping[str, str]


def target(url: str | None, api_key: str | None) -> Target:
    """The target: from the arguments, else ``ONCEBOX_URL`` and ``ONCEBOX_API_KEY``, else the local default.

    Raises:
        ValueError: the URL is not one of http or https, or the key can't be sent in a header.
    """
    url = (url or os.environ.get("ONCEBOX_URL") or DEFAULT_URL).rstrip("/")
    _check(url)
    headers = {"User-Agent": f"oncebox-python/{_version()}", "Accept": "application/json"}
    api_key = api_key or os.environ.get("ONCEBOX_API_KEY")
    if api_key:
        if not re.fullmatch(r"[!-~]+", api_key):
            raise ValueError("the API key has characters that a header can't carry")
        headers["Authorization"] = f"Bearer {api_key}"
    return Target(url, headers)


def _check(url: str) -> None:
    try:
        url.encode()
        parts = urlsplit(url)
        possible = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        raise ValueError(f"not an http or https URL: {url!r}") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL has a user or a password in it; the API key is an argument of its own")
    if not possible or parts.query or parts.fragment:
        raise ValueError(f"not an http or https URL: {url!r}")


def _version() -> str:
    try:
        return metadata.version("oncebox")
    except metadata.PackageNotFoundError:
        return "0"
