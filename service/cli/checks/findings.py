"""What ``oncebox doctor`` makes of what its probes saw: pure functions to findings, each with its mend."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec

from service.settings import Settings, SettingsError
from service.tenants import Tenants, TenantsFileBroken

if TYPE_CHECKING:
    from service.ports.store import StoreHealth

OLDEST_REDIS = 7
CLOCK_TOLERANCE = 5.0
"""Seconds by which two clocks may differ: no lease depends on it, and what is shown looks right."""


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. ``mend`` says what to do where it is not ``ok``."""

    about: str
    verdict: Literal["ok", "warning", "wrong", "skipped"]
    said: str
    mend: str = ""


def ok(about: str, said: str) -> Finding:
    """All is well."""
    return Finding(about, "ok", said)


def wrong(about: str, said: str, mend: str) -> Finding:
    """Something that must be mended."""
    return Finding(about, "wrong", said, mend)


def warning(about: str, said: str, mend: str = "") -> Finding:
    """Something that may be meant, or could not be looked at."""
    return Finding(about, "warning", said, mend)


def judge_settings(settings: Settings, unknown: str | None = None) -> list[Finding]:
    """``unknown`` is what was logged about names that no setting has."""
    found = []
    if unknown:
        found.append(warning("settings", unknown, "Check the spelling; `oncebox serve` ignores them."))
    try:
        settings.check_serving(workers=1)
    except SettingsError as error:
        found.append(wrong("settings", str(error), "Bind to 127.0.0.1, or name a file of tenants in ONCEBOX_TENANTS."))
    if settings.lease > settings.claim_wait:
        found.append(
            warning(
                "lease",
                f"ONCEBOX_LEASE ({settings.lease:g} s) is longer than ONCEBOX_CLAIM_WAIT ({settings.claim_wait:g} s): "
                "a retry after a replica was killed is answered before it can be taken over, and its job may then fail "
                "as replica_lost",
                "Let ONCEBOX_LEASE be the shorter one.",
            )
        )
    if settings.tenants is not None:
        found.append(_judge_tenants(settings.tenants, settings.secret))
    return found or [ok("settings", "every value can be used")]


def _judge_tenants(path: str, secret: str | None) -> Finding:
    about = "tenants"
    try:
        tenants = Tenants(path)
    except TenantsFileBroken as error:
        mend = "Mend it, or name another file in ONCEBOX_TENANTS; `oncebox keys new TENANT` prints lines for it."
        return wrong(about, f"{path} can't be used: {error}", mend)
    if len(tenants) > 1 and not secret:
        return wrong(
            about,
            f"{path} has {len(tenants)} tenants, and there is no secret to sign the reserved metadata with",
            "Set ONCEBOX_SECRET to a long random string (`openssl rand -hex 32`), one for all replicas.",
        )
    return ok(about, f"{len(tenants)} in {path}")


def judge_store(health: StoreHealth) -> list[Finding]:
    """A Redis server that answered."""
    found = [_judge_version(health), _judge_eviction(health), _judge_persistence(health)]
    if health.role in ("slave", "replica"):
        mend = "Name the master in ONCEBOX_REDIS_URL, or use redis+sentinel://."
        found.insert(0, wrong("Redis role", "a replica, which takes no writes", mend))
    return found


def _judge_version(health: StoreHealth) -> Finding:
    about = "Redis version"
    number = re.match(r"(\d+)\.", health.version or "")
    if number is None:
        return warning(about, "can't be read", f"Make sure that it is {OLDEST_REDIS} or newer.")
    if int(number[1]) < OLDEST_REDIS:
        return wrong(about, f"{health.version} is too old", f"Use Redis {OLDEST_REDIS} or newer, or Valkey.")
    return ok(about, f"{health.version}")


def _judge_eviction(health: StoreHealth) -> Finding:
    about = "Redis eviction"
    if health.maxmemory_policy is None:
        return warning(about, "can't be read", "Make sure that maxmemory-policy is noeviction.")
    if health.maxmemory_policy != "noeviction":
        return wrong(
            about,
            f"maxmemory-policy is {health.maxmemory_policy}: under memory pressure claims would vanish, "
            "and a retry would run its command again",
            "redis-cli CONFIG SET maxmemory-policy noeviction, and the same in redis.conf.",
        )
    return ok(about, "noeviction")


def _judge_persistence(health: StoreHealth) -> Finding:
    about = "Redis persistence"
    match health.persistence:
        case None:
            return warning(about, "can't be read", "Make sure that the append-only file is on.")
        case "none":
            return wrong(
                about,
                "off: a restart loses every recorded result",
                "redis-cli CONFIG SET appendonly yes, and the same in redis.conf.",
            )
        case "rdb":
            return warning(
                about,
                "snapshots only: a crash loses the results since the last one",
                "redis-cli CONFIG SET appendonly yes, and the same in redis.conf.",
            )
        case kind:
            return ok(about, kind)


def judge_clock(about: str, ahead: float | None) -> Finding:
    """``ahead``: seconds by which the other clock is ahead of ours; None where it showed none."""
    if ahead is None:
        return Finding(about, "skipped", "it does not say what time it is")
    if abs(ahead) <= CLOCK_TOLERANCE:
        return ok(about, f"within {CLOCK_TOLERANCE:.0f} s of this machine's")
    direction = "ahead of" if ahead > 0 else "behind"
    return wrong(
        about,
        f"{abs(ahead):.0f} s {direction} this machine's",
        "Synchronise both machines by NTP (timedatectl).",
    )
