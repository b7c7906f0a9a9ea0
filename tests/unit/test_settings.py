"""Settings: from the environment and a file, refused in one message that names the variable."""

import ipaddress
import logging
from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings, SettingsError, load

SHARED = {"ONCEBOX_REDIS_URL": "redis://r:6379/0", "ONCEBOX_ENGINE_URL": "http://e:8080"}


def test_nothing_configured_is_the_embedded_default() -> None:
    settings = load({})
    assert (settings.redis_url, settings.engine_url, settings.bind) == ("memory://", "local://", "127.0.0.1:8700")
    assert (settings.claim_wait, settings.lease, settings.retention) == (20, 15, 86_400)
    assert (settings.engine_interval, settings.record_output, settings.record_budget) == (3, 262_144, 1_073_741_824)
    assert (settings.shutdown_grace, settings.shutdown_delay) == (30, 0)
    assert (settings.image, settings.engine_proxy, settings.fence_dir) == ("python:3.12", "auto", "/tmp/.oncebox")
    assert settings.workspace_dirs[0] == ("workspace", "/workspace")
    assert settings == Settings()


def test_a_replica_among_others_serves_on_for_a_while_at_its_end() -> None:
    assert load(SHARED).shutdown_delay == 5
    assert load({**SHARED, "ONCEBOX_SHUTDOWN_DELAY": "0"}).shutdown_delay == 0
    assert load({"ONCEBOX_SHUTDOWN_DELAY": "2"}).shutdown_delay == 2


@pytest.mark.parametrize(
    ("name", "value", "attribute", "read"),
    [
        ("ONCEBOX_REDIS_URL", "rediss://u:p@h/1", "redis_url", "rediss://u:p@h/1"),
        ("ONCEBOX_REDIS_URL", "redis+sentinel://h1,h2/name/0", "redis_url", "redis+sentinel://h1,h2/name/0"),
        ("ONCEBOX_REDIS_URL", "redis+cluster://h1", "redis_url", "redis+cluster://h1"),
        ("ONCEBOX_ENGINE_URL", "https://e:8080/", "engine_url", "https://e:8080"),
        ("ONCEBOX_BIND", "[::1]:0", "bind", "[::1]:0"),
        ("ONCEBOX_LEASE", "2.5", "lease", 2.5),
        ("ONCEBOX_RECORD_OUTPUT", "0", "record_output", 0),
        ("ONCEBOX_INSECURE", "1", "insecure", True),
        ("ONCEBOX_INSECURE", "false", "insecure", False),
        ("ONCEBOX_IMAGE", "host:5000/a/b:1@sha256:" + "0" * 64, "image", "host:5000/a/b:1@sha256:" + "0" * 64),
        ("ONCEBOX_VOLUME", "pvc:work", "volume", "pvc:work"),
        ("ONCEBOX_VOLUME", "host:/srv/work", "volume", "host:/srv/work"),
        ("ONCEBOX_WORKSPACE_DIRS", "a:/b, c:/d/e", "workspace_dirs", (("a", "/b"), ("c", "/d/e"))),
        (
            "ONCEBOX_ENGINE_NETWORKS",
            "10.0.0.0/8, fd00::/8",
            "engine_networks",
            (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")),
        ),
        ("ONCEBOX_LEASE", "", "lease", 15),
    ],
)
def test_a_variable_is_read(name: str, value: str, attribute: str, read: Any) -> None:
    assert getattr(load({name: value}), attribute) == read


WRONG = [
    ("ONCEBOX_REDIS_URL", "http://h"),
    ("ONCEBOX_REDIS_URL", "redis://"),
    ("ONCEBOX_REDIS_URL", "memory"),
    ("ONCEBOX_REDIS_URL", "redis://[h"),
    ("ONCEBOX_ENGINE_URL", "e:8080"),
    ("ONCEBOX_ENGINE_URL", "http://"),
    ("ONCEBOX_ENGINE_URL", "http://h:99999"),
    ("ONCEBOX_ENGINE_URL", "http://u:p@h"),
    ("ONCEBOX_ENGINE_URL", "local"),
    ("ONCEBOX_ENGINE_PROXY", "sometimes"),
    ("ONCEBOX_ENGINE_API_KEY", "a b"),
    ("ONCEBOX_BIND", "8700"),
    ("ONCEBOX_BIND", "::1:8700"),
    ("ONCEBOX_BIND", "127.0.0.1:70000"),
    ("ONCEBOX_BIND", "127.0.0.1:"),
    ("ONCEBOX_LEASE", "15s"),
    ("ONCEBOX_LEASE", "0"),
    ("ONCEBOX_LEASE", "nan"),
    ("ONCEBOX_LEASE", "1_5"),
    ("ONCEBOX_LEASE", "\u0661\u0665"),
    ("ONCEBOX_LEASE", "1e300"),
    ("ONCEBOX_RECORD_OUTPUT", "\u00b2"),
    ("ONCEBOX_RETENTION", "inf"),
    ("ONCEBOX_CLAIM_WAIT", "-1"),
    ("ONCEBOX_RECORD_OUTPUT", "1.5"),
    ("ONCEBOX_RECORD_BUDGET", "1GiB"),
    ("ONCEBOX_CLAIM_REPLICAS", "-1"),
    ("ONCEBOX_ENGINE_NETWORKS", "10.0.0.1/8"),
    ("ONCEBOX_ENGINE_NETWORKS", "inside"),
    ("ONCEBOX_FENCE_DIR", "tmp"),
    ("ONCEBOX_FENCE_DIR", "/tmp/../etc"),
    ("ONCEBOX_IMAGE", "Python:3.12"),
    ("ONCEBOX_IMAGE", "python 3.12"),
    ("ONCEBOX_IMAGE", "python:"),
    ("ONCEBOX_IMAGE", "https://host/python"),
    ("ONCEBOX_IMAGE", "a" * 513),
    ("ONCEBOX_VOLUME", "/srv"),
    ("ONCEBOX_VOLUME", "pvc:Not A Name"),
    ("ONCEBOX_WORKSPACE_DIRS", "workspace"),
    ("ONCEBOX_WORKSPACE_DIRS", "..:/workspace"),
    ("ONCEBOX_WORKSPACE_DIRS", "a:/b,a:/c"),
    ("ONCEBOX_WORKSPACE_DIRS", "a:/b,c:/b"),
    ("ONCEBOX_WORKSPACE_DIRS", ","),
    ("ONCEBOX_INSECURE", "maybe"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_stops_the_start_and_names_the_variable(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} must be "):
        load({name: value})


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"ONCEBOX_LEASE": "x", "ONCEBOX_BIND": "y", "ONCEBOX_RETENTION": "1"})
    assert "ONCEBOX_LEASE" in str(caught.value)
    assert "ONCEBOX_BIND" in str(caught.value)
    assert "ONCEBOX_RETENTION" not in str(caught.value)


@pytest.mark.parametrize("name", ["ONCEBOX_REDIS_URL", "ONCEBOX_ENGINE_URL", "ONCEBOX_ENGINE_API_KEY", "ONCEBOX_URL"])
def test_a_secret_is_never_repeated(name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({name: "ftp://user:hunter2 @h"})
    assert "hunter2" not in str(caught.value)


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "oncebox.toml"
    file.write_text(
        'ONCEBOX_LEASE = 7\nONCEBOX_CLAIM_WAIT = 1.5\nbind = "127.0.0.1:1"\nONCEBOX_INSECURE = true\n'
        'ONCEBOX_ENGINE_NETWORKS = ["10.0.0.0/8"]\n'
    )
    settings = load({"ONCEBOX_CONFIG": str(file), "ONCEBOX_LEASE": "9"})
    assert (settings.lease, settings.claim_wait, settings.bind, settings.insecure) == (9, 1.5, "127.0.0.1:1", True)
    assert settings.engine_networks == (ipaddress.ip_network("10.0.0.0/8"),)
    assert load({"ONCEBOX_CONFIG": str(file)}, {"bind": "127.0.0.1:2"}).bind == "127.0.0.1:2"


@pytest.mark.parametrize("content", ["lease = ", "\xff"])
def test_a_file_that_is_no_toml_stops_the_start(tmp_path: Path, content: str) -> None:
    file = tmp_path / "oncebox.toml"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(SettingsError, match="ONCEBOX_CONFIG"):
        load({"ONCEBOX_CONFIG": str(file)})


def test_a_file_that_is_not_there_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="ONCEBOX_CONFIG"):
        load({"ONCEBOX_CONFIG": str(tmp_path / "nowhere.toml")})


@pytest.mark.parametrize("value", ["true", "[1]", "1979-05-27", "1" + "0" * 400, "inf"])
def test_a_value_of_another_type_in_the_file_is_wrong(tmp_path: Path, value: str) -> None:
    file = tmp_path / "oncebox.toml"
    file.write_text(f"ONCEBOX_LEASE = {value}\n")
    with pytest.raises(SettingsError, match="ONCEBOX_LEASE"):
        load({"ONCEBOX_CONFIG": str(file)})


def test_unknown_names_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "oncebox")
    load({"ONCEBOX_LAESE": "9", "ONCEBOX_PORT": "tcp://10.0.0.1:8700", "ONCEBOX_TEST_X": "1", "OTHER": "1"})
    assert caplog.messages == ["unknown settings, ignored: ONCEBOX_LAESE, ONCEBOX_PORT"]


@pytest.mark.parametrize("bind", ["0.0.0.0:8700", "[::]:8700", "10.0.0.1:8700", "box.example:8700"])
def test_without_keys_only_loopback_is_bound(bind: str) -> None:
    with pytest.raises(SettingsError, match="ONCEBOX_BIND"):
        load({"ONCEBOX_BIND": bind}).check_serving(1)
    load({"ONCEBOX_BIND": bind, "ONCEBOX_INSECURE": "1"}).check_serving(1)
    load({"ONCEBOX_BIND": bind, "ONCEBOX_TENANTS": "t.toml"}).check_serving(1)


@pytest.mark.parametrize("bind", ["127.0.0.1:8700", "127.9.9.9:0", "[::1]:8700", "localhost:8700"])
def test_loopback_needs_no_keys(bind: str) -> None:
    load({"ONCEBOX_BIND": bind}).check_serving(1)


def test_several_workers_need_a_store_and_an_engine_that_they_share() -> None:
    load(SHARED).check_serving(4)
    for name in SHARED:
        with pytest.raises(SettingsError, match="--workers"):
            load({key: value for key, value in SHARED.items() if key != name}).check_serving(2)
    with pytest.raises(SettingsError, match="--workers"):
        load(SHARED).check_serving(0)
