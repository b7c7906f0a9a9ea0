"""What both transports share: where to, and as whom."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from urllib.parse import urlsplit

from .steps import Dropped, Request

DEFAULT_URL = "http://127.0.0.1:8700"
CONNECT_TIMEOUT = 10.0
"""Seconds in which a connection must be made."""
SLOW_BODY = 600.0
"""Seconds on top of a request's read timeout in which a whole answer must have come, however it trickles."""

_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"})
"""What OpenSSL says of a peer that answers a handshake in plain text; newer ones say ``RECORD_LAYER_FAILURE``."""
_NO_AGREEMENT = frozenset(
    {
        "RECORD_LAYER_FAILURE",
        "UNSUPPORTED_PROTOCOL",
        "NO_PROTOCOLS_AVAILABLE",
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "TLSV1_ALERT_UNKNOWN_CA",
        "TLSV1_UNRECOGNIZED_NAME",
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
    }
)
"""What it says where two sides can't agree, however often they try."""
_ALERT = re.compile(r"\\+x15\\+x03")
"""How the answer of a peer that speaks TLS begins, as HTTP libraries quote it."""


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


def sent(request: Request) -> tuple[bytes | Iterator[bytes] | None, Mapping[str, str]]:
    """The body and the headers of ``request`` as the libraries take them."""
    if isinstance(request.body, bytes | None):
        return request.body, request.headers
    return request.body.pieces(), {**request.headers, "Content-Length": str(request.body.length)}


def dropped_by_tls(error: object) -> Dropped:
    """What came of a request whose connection ended with an error of TLS."""
    reason = getattr(error, "reason", None)
    permanent = isinstance(error, ssl.SSLCertVerificationError) or reason in _NO_TLS | _NO_AGREEMENT
    hint = "; does the service speak https?" if reason in _NO_TLS else ""
    return Dropped(f"TLS: {error}{hint}", permanent, error if isinstance(error, BaseException) else None)


def dropped_by_peer(detail: str, error: BaseException) -> Dropped:
    """What came of a request whose connection broke, or brought something that is not HTTP."""
    if _ALERT.search(detail):
        return Dropped("the answer is TLS and not HTTP; does the service speak https?", permanent=True, cause=error)
    return Dropped(f"the connection broke: {detail}", cause=error)


def _check(url: str) -> None:
    try:
        url.encode()
        parts = urlsplit(url)
        # The name as it will be looked up: no empty or overlong part in it.
        host = (parts.hostname or "").encode("idna")
        possible = (
            parts.scheme in ("http", "https") and host and parts.port != 0 and not re.search(r"[\s\x00-\x1f]", url)
        )
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
