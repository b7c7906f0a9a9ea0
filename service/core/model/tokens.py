"""Texts that callers hand back as they got them: cursors and page tokens. Pure."""

from __future__ import annotations

import base64
import binascii
import re


def pack(plain: str) -> str:
    """``plain`` (ASCII) in base64url without padding."""
    return base64.urlsafe_b64encode(plain.encode("ascii")).rstrip(b"=").decode("ascii")


def unpack(text: str, form: re.Pattern[str]) -> re.Match[str] | None:
    """What ``pack`` made ``text`` of, matched by ``form``; None for anything else."""
    try:
        plain = base64.urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4)).decode("ascii")
    except (ValueError, binascii.Error):
        return None
    return form.fullmatch(plain) if pack(plain) == text else None
