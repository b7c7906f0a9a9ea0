"""Secrets stay where they belong: marked ones go through the product's own processes, and all that was written is read.

Keys of callers, the engine's key, ONCEBOX_SECRET, the metrics token, Redis's password, variables and commands are
marked. Nothing of it is in a log, a trace, a metric or a problem. In Redis stand a command and its variables alone,
beside the claim that they belong to (docs/security.md).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from service.store import packing
from service.tenants import key_digest
from tests.acceptance.http_rig import Replica
from tests.conftest import RedisStarter
from tests.faults.rig import ENGINE_KEY, EngineProcess
from tests.support.processes import Spawner

pytestmark = [pytest.mark.acceptance, pytest.mark.integration]

API_KEY, WRONG_KEY = "obx_MARKEDapikey", "obx_MARKEDwrongkey"
SIGNING, TOKEN, PASSWORD = "MARKEDsecret", "MARKEDtoken", "MARKEDpassword"
VARIABLE, COMMAND, KEY = "MARKEDvariable", "MARKEDcommand", "MARKEDidempotencykey"
NEVER = [API_KEY, WRONG_KEY, SIGNING, TOKEN, PASSWORD, ENGINE_KEY, KEY]
"""Written nowhere at all."""
KEPT = [VARIABLE, COMMAND]
"""Kept in Redis beside their claim, and written nowhere else."""


class Stage:
    """A replica on Redis with a password and an engine of its own, and all that the callers were told."""

    def __init__(self, spawn: Spawner, start_redis: RedisStarter, folder: Path) -> None:
        tenants = folder / "tenants.toml"
        tenants.write_text(f'[acme]\nkeys = ["{key_digest(API_KEY)}"]\n')
        self.redis = start_redis(requirepass=PASSWORD)
        self.engine = EngineProcess(spawn, folder / "engine")
        self.env = {
            "ONCEBOX_REDIS_URL": self.redis.url,
            "ONCEBOX_ENGINE_URL": self.engine.url, "ONCEBOX_ENGINE_API_KEY": ENGINE_KEY,
            "ONCEBOX_TENANTS": str(tenants), "ONCEBOX_SECRET": SIGNING, "ONCEBOX_METRICS_TOKEN": TOKEN,
            "ONCEBOX_SHUTDOWN_DELAY": "0", "ONCEBOX_SHUTDOWN_GRACE": "2", "ONCEBOX_CLAIM_WAIT": "2",
            "OTEL_TRACES_EXPORTER": "console",
        }  # fmt: skip
        self.replica = Replica(spawn, self.env)
        self.problems: list[str] = []

    def ask(self, method: str, target: str, body: Any = None, *, api_key: str = API_KEY, **headers: str) -> Any:
        answer = self.replica.ask(method, target, body, Authorization=f"Bearer {api_key}", **headers)
        if answer.status >= 400:
            self.problems.append(f"{answer.headers}\n{answer.data.decode()}")
        return answer

    def fault(self, kind: str, **fault: Any) -> None:
        named = {f"{kind}_{name}": value for name, value in fault.items()}
        answer = self.replica.http.request("POST", f"{self.engine.url}/_dev/faults", json=named)
        assert answer.status == 200, answer.data


@pytest.fixture
def stage(spawn: Spawner, start_redis: RedisStarter, tmp_path: Path) -> Stage:
    return Stage(spawn, start_redis, tmp_path)


def flows(stage: Stage) -> None:
    """What callers do, well and badly, with the engine in good health and not."""
    variables = {"PASSWORD": VARIABLE}
    sandbox = stage.ask("POST", "/v1/sandboxes", {"env": variables}, Idempotency_Key=KEY).json()["sandbox_id"]
    run = {"sandbox_id": sandbox, "command": f": {COMMAND}", "env": variables}
    job = stage.ask("POST", "/v1/exec-jobs", run, Idempotency_Key=KEY).json()["command_id"]
    assert stage.ask("POST", "/v1/exec-jobs", run, Idempotency_Key=KEY).headers["Idempotent-Replayed"] == "true"
    assert stage.ask("POST", "/v1/exec", run, Idempotency_Key=f"{KEY}2").status == 200
    long = stage.ask("POST", "/v1/exec-jobs", {**run, "command": f"sleep 300 # {COMMAND}"}).json()["command_id"]
    assert stage.ask("GET", f"/v1/exec-jobs/{job}?wait=5").status == 200
    assert stage.ask("DELETE", f"/v1/exec-jobs/{long}").status == 202
    refused: list[tuple[dict[str, Any], int]] = [
        ({**run, "env": {"A": [VARIABLE]}}, 422), ({**run, "env": VARIABLE}, 422), ({**run, "command": [COMMAND]}, 422),
        ({**run, "env": {"A": VARIABLE + "\0"}}, 422), ({**run, "command": COMMAND + "\0"}, 422),
        ({**run, "command": COMMAND + "x" * 100_000}, 413), ({**run, "env": {"A": VARIABLE * 10_000}}, 422),
        ({**run, "command": f"{COMMAND} 2"}, 422), ({**run, "timeout": COMMAND}, 422),
    ]  # fmt: skip
    for body, status in refused:
        assert stage.ask("POST", "/v1/exec-jobs", body, Idempotency_Key=KEY).status == status, body
    assert stage.ask("POST", "/v1/exec-jobs", f'{{"command": "{COMMAND}'.encode()).status == 400
    assert stage.ask("POST", "/v1/exec-jobs", run, Idempotency_Key=f"{KEY} {KEY}").status == 400
    assert stage.ask("GET", "/v1/sandboxes", api_key=WRONG_KEY).status == 401
    assert stage.ask("GET", "/metrics", api_key=WRONG_KEY).status in (401, 403)
    # An engine that repeats what it was sent, in refusals and in its own errors.
    said = {"code": "MADE_UP", "message": f"could not run {COMMAND} with {VARIABLE} and {ENGINE_KEY}"}
    for kind in ("create", "submit"):
        for status in (500, 503):
            stage.fault(kind, status=status, body=str(said).replace("'", '"'))
            made = {"env": variables} if kind == "create" else run
            path = "/v1/sandboxes" if kind == "create" else "/v1/exec-jobs"
            assert stage.ask("POST", path, made, Idempotency_Key=f"{KEY}{status}").status in (409, 502, 503)
    stage.fault("submit", reply="drop")
    stage.ask("POST", "/v1/exec-jobs", run, Idempotency_Key=f"{KEY}3")
    stage.ask("DELETE", f"/v1/sandboxes/{sandbox}")


def test_secrets_are_written_nowhere(stage: Stage) -> None:
    flows(stage)
    metrics = stage.ask("GET", "/metrics", api_key=TOKEN)
    assert metrics.status == 200
    kept = in_redis(stage)
    stage.engine.process.kill()
    stage.ask("POST", "/v1/sandboxes", {"env": {"A": VARIABLE}}, Idempotency_Key=f"{KEY}4")
    stage.redis.kill()
    stage.ask("POST", "/v1/sandboxes", {"env": {"A": VARIABLE}}, Idempotency_Key=f"{KEY}5")
    stage.replica.process.terminate()
    written = {
        "logs": stage.replica.process.stderr, "traces": stage.replica.process.stdout, "metrics": metrics.data.decode(),
        # A key comes back to whoever sent it, and to nobody else.
        "problems": "\n".join(stage.problems).replace(KEY, ""),
    }  # fmt: skip
    assert "oncebox.access" in written["logs"]
    assert "oncebox.audit" in written["logs"]
    assert '"name": "POST /v1/exec-jobs"' in written["traces"]
    for place, text in written.items():
        for secret in NEVER + KEPT:
            assert secret not in text, (place, secret, around(text, secret))
        assert "MARKED" not in text.upper(), (place, around(text.upper(), "MARKED"))
    for name, value in kept.items():
        for secret in NEVER:
            assert secret.encode() not in name + value, (name, secret)
        if VARIABLE.encode() in value:
            assert b":request:" in name, name
        if COMMAND.encode() in value:
            assert b":request:" in name or b":claim:" in name, name
    assert any(VARIABLE.encode() in value for value in kept.values()), "nothing was looked for in the right place"


def around(text: str, found: str) -> str:
    place = text.find(found)
    return text[max(0, place - 300) : place + 100]


def in_redis(stage: Stage) -> dict[bytes, bytes]:
    """Every key with its value, decompressed."""
    found: dict[bytes, bytes] = {}
    with redis.Redis.from_url(stage.redis.url) as client:
        for name in client.scan_iter("*"):
            match client.type(name):
                case b"string":
                    value = client.get(name)
                case b"hash":
                    value = repr(client.hgetall(name)).encode()
                case _:
                    value = repr(client.zrange(name, 0, -1)).encode()
            if isinstance(value, bytes):  # else it has just ended
                found[name] = packing.unpack(value) if (b":request:" in name or b":streams:" in name) else value
    return found


def test_a_start_that_fails_tells_no_secret(spawn: Spawner, tmp_path: Path) -> None:
    oncebox = Path(sys.executable).parent / "oncebox"
    tenants = tmp_path / "tenants.toml"
    tenants.write_text(f'[acme]\nkeys = ["{API_KEY}"]\n')
    wrong: list[dict[str, str]] = [
        {"ONCEBOX_TENANTS": str(tenants)},
        {"ONCEBOX_REDIS_URL": f"nonsense://:{PASSWORD}@x"},
        {"ONCEBOX_ENGINE_URL": f"http://user:{PASSWORD}@x"},
        {"ONCEBOX_ENGINE_API_KEY": f"{ENGINE_KEY} {PASSWORD}"},
        {"ONCEBOX_METRICS_TOKEN": f"{TOKEN} x"},
    ]
    commands = (["serve", "--bind", "127.0.0.1:0"], ["doctor"])
    started = [
        spawn([oncebox, *command], name=f"{command[0]}{number}", env=env)
        for number, env in enumerate(wrong)
        for command in commands
    ]
    for process in started:
        assert process.wait(timeout=60) != 0, process.report()
        assert "ONCEBOX_" in process.stdout + process.stderr
        for secret in (API_KEY, PASSWORD, ENGINE_KEY, TOKEN):
            assert secret not in process.stdout + process.stderr, process.name
