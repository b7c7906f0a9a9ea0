"""Keys into names: scope, digest, fingerprint, command id and fence token. Pure functions, the one door.

Digests are written into labels that outlive a release: golden vectors in the tests hold their form.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import re
import secrets
import uuid
from typing import Any

import msgspec

from service.messages import canonical

DIGEST_LENGTH = 32
"""Hex digits of a digest: 128 bits, which fit a Kubernetes label value (63 characters)."""

_COMMAND_ID = re.compile(r"cmd_([A-Za-z0-9_-]{2,172})_([A-Za-z0-9_-]{22})")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_UUID_LENGTH = 22
"""Characters of base64url for 16 bytes. What follows the ``-`` before any other id never has so many."""


def _packed(*parts: str | None) -> bytes:
    """``parts`` so that no two different lists give the same bytes: each is length-prefixed, absent is ``-``."""
    packed = []
    for part in parts:
        if part is None:
            packed.append(b"-")
        else:
            raw = part.encode("utf-8", "surrogatepass")
            packed.append(b"%d:%s" % (len(raw), raw))
    return b"|".join(packed)


def _hash(*parts: str | None) -> str:
    return hashlib.sha256(_packed(*parts)).hexdigest()[:DIGEST_LENGTH]


def fingerprint(request: Any, *, leave_out: frozenset[str] = frozenset()) -> str:
    """The hash of a request's meaning: decoded, keys sorted, fields not sent (or null) left out.

    ``leave_out`` names fields that belong to the request, not to its meaning (``wait_ready``).
    """
    plain = canonical(request)
    meaning = {key: value for key, value in plain.items() if key not in leave_out}
    return hashlib.sha256(msgspec.json.encode(meaning)).hexdigest()[:DIGEST_LENGTH]


def sandbox_digest(tenant: str, owner: str | None, body: str, key: str) -> str:
    """Name the claim of a sandbox. ``body`` is the request's fingerprint; it counts where no owner was given."""
    return _hash("sandbox", tenant, owner, body if owner is None else None, key)


def job_digest(tenant: str, sandbox_id: str, key: str) -> str:
    """Name the claim of a job or an exec."""
    return _hash("job", tenant, sandbox_id, key)


def owner_digest(owner: str) -> str:
    """The owner as a label value: an owner is any string, a label is not."""
    return _hash("owner", owner)


def job_ref(digest: str) -> str:
    """The part of a ``command_id`` that leads back to the claim."""
    return _base64(bytes.fromhex(_hash("ref", digest)))


def command_id(sandbox_id: str, ref: str) -> str:
    """``cmd_``, the sandbox, ``_``, ref: 49 characters where the engine's ids are UUIDs.

    The sandbox is the 16 bytes of its UUID in base64url; of an id that is none, ``-`` and its text in base64url.
    """
    if _UUID.fullmatch(sandbox_id):
        return f"cmd_{_base64(uuid.UUID(sandbox_id).bytes)}_{ref}"
    return f"cmd_-{_base64(sandbox_id.encode())}_{ref}"


@functools.lru_cache(maxsize=16_384)  # several times in each request, and in each name of a key
def parse_command_id(text: str) -> tuple[str, str] | None:
    """The sandbox's id and the ref of a ``command_id``; None for anything that ``command_id`` would not make."""
    match = _COMMAND_ID.fullmatch(text)
    if match is None:
        return None
    encoded, ref = match.groups()
    try:
        if len(encoded) == _UUID_LENGTH:
            sandbox_id = str(uuid.UUID(bytes=_from_base64(encoded)))
        else:
            sandbox_id = _from_base64(encoded.removeprefix("-")).decode()
        if not sandbox_id or command_id(sandbox_id, _base64(_from_base64(ref))) != text:
            return None
    except (binascii.Error, ValueError):
        return None
    return sandbox_id, ref


def _base64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _from_base64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


_ATTEMPT = re.compile(r"[1-9][0-9]{0,3}")


def parse_attempt(text: str) -> int | None:
    """The number of an attempt that stands in a label or in a list; None for anything else ("²" is no digit of ours).

    At most 9999: no key is tried as often, and who walks through attempts must come to an end.
    """
    return int(text) if _ATTEMPT.fullmatch(text) else None


def fence_token(ref: str, attempt: int) -> str:
    """Name the fence of one attempt. It tells nothing about the caller's key."""
    return _hash("fence", ref, str(attempt))


def token_of(command_id: str, attempt: int) -> str:
    """The same, by the job's id. Raises ``ValueError`` for what is none."""
    parsed = parse_command_id(command_id)
    if parsed is None:
        raise ValueError(f"no command id: {command_id!r}")
    return fence_token(parsed[1], attempt)


class MadeKey(str):
    """An Idempotency-Key that the server made for this very request: nothing of it can exist yet."""

    __slots__ = ()


def random_token() -> str:
    """128 random bits in hex: a claim's token, a generation, a boot mark, a key made for a caller."""
    return secrets.token_hex(16)


def signature(secret: str, tenant: str, owner: str, digest: str) -> str:
    """HMAC-SHA256 over whose a sandbox is (first 32 hex digits), so that a forged label is worth nothing."""
    return hmac.new(secret.encode(), _packed(tenant, owner, digest), hashlib.sha256).hexdigest()[:DIGEST_LENGTH]


def same(left: str, right: str) -> bool:
    """Equality in constant time."""
    return hmac.compare_digest(left.encode(), right.encode())


_SANDBOX_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?")


def plausible_sandbox_id(text: str) -> bool:
    """Whether an engine could have given this id; others are never put into a URL."""
    return _SANDBOX_ID.fullmatch(text) is not None
