"""What the doctor makes of what it sees."""

from pathlib import Path

import pytest

from service.cli.checks.findings import Finding, judge_clock, judge_settings, judge_store
from service.ports.store import StoreHealth
from service.settings import Settings


def verdicts(findings: list[Finding]) -> dict[str, str]:
    return {finding.about: finding.verdict for finding in findings}


def test_a_good_redis_is_good() -> None:
    findings = judge_store(StoreHealth(version="7.0.1", maxmemory_policy="noeviction", persistence="aof"))

    assert set(verdicts(findings).values()) == {"ok"}


@pytest.mark.parametrize(
    ("health", "about", "verdict", "mend"),
    (
        (StoreHealth(version="6.2.7"), "Redis version", "wrong", "Redis 7"),
        (StoreHealth(version="10.0.0"), "Redis version", "ok", ""),
        (StoreHealth(), "Redis version", "warning", "7 or newer"),
        (
            StoreHealth(maxmemory_policy="allkeys-lru"),
            "Redis eviction",
            "wrong",
            "maxmemory-policy noeviction",
        ),
        (StoreHealth(), "Redis eviction", "warning", "noeviction"),
        (StoreHealth(persistence="none"), "Redis persistence", "wrong", "appendonly yes"),
        (StoreHealth(persistence="rdb"), "Redis persistence", "warning", "appendonly yes"),
        (StoreHealth(), "Redis persistence", "warning", "append-only"),
        (StoreHealth(role="slave"), "Redis role", "wrong", "sentinel"),
    ),
)
def test_what_is_wrong_with_redis_comes_with_its_mend(health: StoreHealth, about: str, verdict: str, mend: str) -> None:
    (finding,) = (finding for finding in judge_store(health) if finding.about == about)

    assert finding.verdict == verdict
    assert mend in finding.mend


def test_a_bind_for_everybody_without_keys_is_wrong() -> None:
    (finding,) = judge_settings(Settings(bind="0.0.0.0:8700"))

    assert finding.verdict == "wrong"
    assert "ONCEBOX_TENANTS" in finding.mend


def test_unknown_names_are_a_warning() -> None:
    (finding,) = judge_settings(Settings(), "unknown settings, ignored: ONCEBOX_REDIS_ULR")

    assert (finding.verdict, "ONCEBOX_REDIS_ULR" in finding.said) == ("warning", True)


@pytest.mark.parametrize(
    ("lease", "claim_wait", "warned"), [(15.0, 20.0, False), (20.0, 20.0, False), (21.0, 20.0, True)]
)
def test_a_retry_that_does_not_outwait_a_lease_is_a_warning(lease: float, claim_wait: float, warned: bool) -> None:
    findings = judge_settings(Settings(lease=lease, claim_wait=claim_wait))

    assert verdicts(findings).get("lease") == ("warning" if warned else None)


@pytest.mark.parametrize(
    ("content", "secret", "verdict"),
    (
        (f'[acme]\nkeys = ["{0:064}"]', None, "ok"),
        (f'[acme]\nkeys = ["{0:064}"]\n[umbrella]\nkeys = ["{1:064}"]', None, "wrong"),
        (f'[acme]\nkeys = ["{0:064}"]\n[umbrella]\nkeys = ["{1:064}"]', "s", "ok"),
        ("[acme]\nkeys = []", None, "wrong"),
        ("[acme]\nkeys = ['plain text']", None, "wrong"),
        ("", None, "wrong"),
        ("[acme", None, "wrong"),
        (None, None, "wrong"),
    ),
)
def test_two_tenants_need_a_secret(tmp_path: Path, content: str | None, secret: str | None, verdict: str) -> None:
    path = tmp_path / "tenants.toml"
    if content is not None:
        path.write_text(content)

    findings = judge_settings(Settings(tenants=str(path), secret=secret))

    assert verdicts(findings) == {"tenants": verdict}


@pytest.mark.parametrize(
    ("ahead", "verdict", "said"),
    (
        (1.0, "ok", "within"),
        (-90.0, "wrong", "90 s behind"),
        (90.0, "wrong", "90 s ahead of"),
        (None, "skipped", "does not say"),
    ),
)
def test_a_clock_may_be_off_by_seconds_only(ahead: float | None, verdict: str, said: str) -> None:
    finding = judge_clock("clock", ahead)

    assert finding.verdict == verdict
    assert said in finding.said
