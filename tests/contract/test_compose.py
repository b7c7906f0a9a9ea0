"""docker-compose.yml and what lies beside it, held against the settings and limits that the code really has."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from service import settings
from service.api.waiting import SIGN_OF_LIFE_SECONDS
from service.server.connections import KEEP_ALIVE_SECONDS
from service.server.replica import CLOSING_SECONDS

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
REPLICAS = {name: each for name, each in SERVICES.items() if name.startswith("oncebox-")}
HAPROXY = (ROOT / "deploy" / "haproxy" / "haproxy.cfg").read_text()
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
UP = (ROOT / "deploy" / "up").read_text()

PLAIN_IMAGE = re.compile(r"([a-z0-9]+/)?[a-z0-9-]+:[a-z0-9.-]+")
"""A name and a tag: no host of a registry."""


def interpolated(value: str, given: dict[str, str] | None = None) -> str:
    """What Docker makes of `${NAME:-default}` and `${NAME-default}`."""
    known = given or {}

    def found(match: re.Match[str]) -> str:
        name, colon, default = match.groups()
        return known[name] if name in known and (known[name] or not colon) else default

    return re.sub(r"\$\{(\w+)(:?)-([^}]*)\}", found, value)


def environment(service: dict[str, Any], given: dict[str, str] | None = None) -> dict[str, str]:
    return {name: interpolated(value, given) for name, value in service.get("environment", {}).items()}


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)(ms|s|m)", text)
    assert found, text
    return float(found[1]) * {"ms": 0.001, "s": 1.0, "m": 60.0}[found[2]]


def timeout(name: str) -> float:
    found = re.search(rf"^ *timeout {name} +(\S+)$", HAPROXY, re.MULTILINE)
    assert found, name
    return seconds(found[1])


@pytest.mark.parametrize("given", [{}, {"ENGINE_URL": "http://opensandbox:8090", "VOLUME": ""}])
@pytest.mark.parametrize("name", REPLICAS)
def test_a_replicas_settings_exist_and_are_understood(name: str, given: dict[str, str]) -> None:
    variables = environment(REPLICAS[name], given)
    assert [each for each in variables if not each.startswith("ONCEBOX_")] == []
    unknown = [
        each for each in variables if each.lower().removeprefix("oncebox_") not in settings.Settings.__struct_fields__
    ]
    assert unknown == []
    read = settings.load(variables)
    read.check_serving(1)
    assert not read.standalone
    assert read.engine_url.split(":")[1].strip("/") in SERVICES


def test_there_are_three_replicas_and_they_are_alike() -> None:
    assert len(REPLICAS) == 3
    run = [{name: value for name, value in each.items() if name != "build"} for each in REPLICAS.values()]
    assert all(each == run[0] for each in run)


def test_one_service_builds_the_image_and_all_of_oncebox_runs_it() -> None:
    builds = [name for name, service in SERVICES.items() if "build" in service]
    assert len(builds) == 1, "two builds of one tag make two images, and chance decides which of them keeps it"
    built = SERVICES[builds[0]]
    assert "profiles" not in built
    assert "scale" not in built
    runs = [SERVICES[name] for name in (*REPLICAS, "engine")]
    assert {service["image"] for service in runs} == {built["image"]}
    assert {service["pull_policy"] for service in runs} == {"never"}
    assert (ROOT / built["build"]["context"] / built["build"]["dockerfile"]).exists()


@pytest.mark.parametrize("name", REPLICAS)
def test_replicas_get_their_token_from_a_file_that_make_up_writes_and_others_do_without(name: str) -> None:
    (file,) = REPLICAS[name]["env_file"]
    assert file["required"] is False, "`docker compose up` works without deploy/up"
    written = re.search(rf'^echo "(\w+)=\$\(cat (\S+)\)" >{re.escape(file["path"])}$', UP, re.MULTILINE)
    assert written
    assert written[1] not in REPLICAS[name]["environment"], "it would win over the file"
    assert settings.load({written[1]: "token"}).metrics_token == "token"
    assert f"./{written[2]}" == COMPOSE["secrets"]["oncebox_metrics_token"]["file"]


@pytest.mark.parametrize("name", REPLICAS)
def test_a_replica_gets_the_time_that_it_may_take_to_end(name: str) -> None:
    read = settings.load(environment(REPLICAS[name]))
    needed = read.shutdown_delay + read.shutdown_grace + CLOSING_SECONDS
    assert seconds(REPLICAS[name]["stop_grace_period"]) >= needed


@pytest.mark.parametrize("name", REPLICAS)
def test_a_replica_may_write_nothing_but_its_tmp(name: str) -> None:
    replica = REPLICAS[name]
    assert replica["read_only"] is True
    assert replica["cap_drop"] == ["ALL"]
    assert "volumes" not in replica
    assert "privileged" not in replica


def test_what_callers_run_in_the_engine_gains_nothing() -> None:
    assert SERVICES["engine"]["read_only"] is True
    assert SERVICES["engine"]["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in SERVICES["engine"]["security_opt"]


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_has_a_plain_image_an_end_and_a_way_to_tell_its_health(name: str) -> None:
    service = SERVICES[name]
    assert PLAIN_IMAGE.fullmatch(service["image"])
    assert not service["image"].endswith(":latest") or name == "opensandbox"
    assert seconds(service["stop_grace_period"]) > 0
    assert "healthcheck" in service or (service["image"] == "oncebox:local" and "HEALTHCHECK" in DOCKERFILE)


@pytest.mark.parametrize("name", SERVICES)
def test_only_loopback_is_published(name: str) -> None:
    assert [port for port in SERVICES[name].get("ports", []) if not port.startswith("127.0.0.1:")] == []


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_and_what_is_named_is_there(name: str) -> None:
    service = SERVICES[name]
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        if source.startswith("./"):
            assert (ROOT / source).exists(), source
        elif not source.startswith("/"):
            assert source in COMPOSE["volumes"]
    assert set(service["networks"]) <= set(COMPOSE["networks"])
    assert set(service.get("depends_on", {})) <= set(SERVICES)


def stopped_after(name: str) -> set[str]:
    """What `docker compose stop` leaves running until this service has ended: all that it depends on."""
    after = set(SERVICES[name].get("depends_on", {}))
    return after.union(*map(stopped_after, after))


@pytest.mark.parametrize("name", REPLICAS)
def test_a_replica_ends_while_everything_that_it_finishes_its_work_with_is_there(name: str) -> None:
    served = {each for each, service in SERVICES.items() if set(service["networks"]) & {"store", "engines"}}
    assert stopped_after(name) == served - set(REPLICAS)
    assert name in stopped_after("balancer")


def test_a_replica_starts_without_the_engine_that_was_not_chosen() -> None:
    """The local one is scaled to nothing, which is no failure where only its start is waited for."""
    assert SERVICES["engine"]["scale"] == "${LOCAL_ENGINES:-1}"
    for replica in REPLICAS.values():
        assert replica["depends_on"]["engine"]["condition"] == "service_started"
        assert {name for name in replica["depends_on"] if "profiles" in SERVICES[name]} == {
            name for name, how in replica["depends_on"].items() if how.get("required") is False
        }


def test_redis_keeps_what_it_has_acknowledged_and_evicts_nothing() -> None:
    words = SERVICES["redis"]["command"]
    options = dict(zip(words[1::2], words[2::2], strict=True))
    assert options["--appendonly"] == "yes"
    assert options["--maxmemory-policy"] == "noeviction"
    assert "redis:/data" in SERVICES["redis"]["volumes"]


def test_the_balancer_knows_every_replica_and_closes_connections_before_they_do() -> None:
    variables = environment(SERVICES["balancer"])
    named = {value for name, value in variables.items() if name.startswith("REPLICA_")}
    assert named == {f"{name}:8700" for name in REPLICAS}
    assert set(re.findall(r'"\$\{(\w+)\}"', HAPROXY)) == set(variables)
    assert timeout("http-keep-alive") < KEEP_ALIVE_SECONDS
    assert timeout("client") < KEEP_ALIVE_SECONDS


def test_the_balancers_patience_is_short_but_longer_than_the_time_between_two_signs_of_life() -> None:
    assert SIGN_OF_LIFE_SECONDS + 2 <= timeout("server") < 30, "a silent long poll would be cut off"


def test_the_balancer_ends_by_itself_before_it_is_killed() -> None:
    bound = re.search(r"^ *hard-stop-after (\S+)$", HAPROXY, re.MULTILINE)
    assert bound
    assert seconds(bound[1]) < seconds(SERVICES["balancer"]["stop_grace_period"])


@pytest.mark.skipif(not Path("/usr/sbin/haproxy").exists() and not shutil.which("haproxy"), reason="no haproxy here")
def test_haproxy_takes_its_file() -> None:
    variables = {"LISTEN": "127.0.0.1:1", **{f"REPLICA_{n}": f"127.0.0.1:{n}" for n in (1, 2, 3)}}
    program = shutil.which("haproxy") or "/usr/sbin/haproxy"
    words = [program, "-c", "-f", "deploy/haproxy/haproxy.cfg"]
    checked = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=30, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_engine_is_the_one_that_replicas_speak_to() -> None:
    engine, replica = SERVICES["engine"], REPLICAS["oncebox-1"]
    key = environment(engine)["OPEN_SANDBOX_API_KEY"]
    assert key == environment(replica)["ONCEBOX_ENGINE_API_KEY"]
    assert f'api_key = "{key}"' in (ROOT / "deploy" / "opensandbox" / "config.toml").read_text()
    words = engine["command"]
    assert words[words.index("--bind") + 1] == "0.0.0.0:8701"
    volume = settings.load(environment(replica)).volume
    assert volume == f"host:{words[words.index('--volume-root') + 1]}"


def test_prometheus_scrapes_every_replica() -> None:
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    targets = scraped["scrape_configs"][0]["static_configs"][0]["targets"]
    assert set(targets) == {f"{name}:8700" for name in REPLICAS}
    secret = scraped["scrape_configs"][0]["authorization"]["credentials_file"]
    assert secret.removeprefix("/run/secrets/") in SERVICES["prometheus"]["secrets"]


def test_the_image_runs_as_nobody_special() -> None:
    stages = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert len(stages) == 2
    assert set(stages) == {"${BASE}"}, "one build argument changes both"
    base = re.search(r"^ARG BASE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert base
    assert PLAIN_IMAGE.fullmatch(base[1])
    assert DOCKERFILE.index(base[0]) < DOCKERFILE.index("FROM "), "an argument counts for a FROM only before the first"
    last = DOCKERFILE[DOCKERFILE.rindex("FROM ") :]
    user = re.search(r"^USER (\d+):(\d+)$", last, re.MULTILINE)
    assert user
    assert user[1] != "0"
    assert re.search(r"^HEALTHCHECK .*", last, re.MULTILINE)
    assert "/readyz" in last


def test_the_image_is_built_from_files_that_are_there() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    kept = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().split()
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in kept, name
