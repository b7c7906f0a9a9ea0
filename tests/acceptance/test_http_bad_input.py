"""Bad input over the wire: each a problem that names its field; nothing runs, nothing is left in the store."""

from typing import Any

import pytest

from tests.acceptance.http_rig import Replica
from tests.support.processes import Spawner
from tests.support.redis_server import RedisServer

pytestmark = [pytest.mark.acceptance, pytest.mark.integration]

LONG = "x" * (96 * 1024 + 1)


@pytest.fixture
def replica(spawn: Spawner, redis_server: RedisServer) -> Replica:
    return Replica(spawn, {"ONCEBOX_REDIS_URL": redis_server.url, "ONCEBOX_SHUTDOWN_DELAY": "0"})


Case = tuple[str, str, Any, dict[str, str], int, str, str | None]


def cases(sandbox: str) -> list[Case]:
    job: dict[str, Any] = {"sandbox_id": sandbox, "command": "touch ran"}
    key = "INVALID_IDEMPOTENCY_KEY"
    found: list[Case] = [
        ("POST", "/v1/exec-jobs", b"{", {}, 400, "INVALID_REQUEST", None),
        ("POST", "/v1/exec-jobs", b"a=b", {"Content-Type": "text/plain"}, 415, "UNSUPPORTED_MEDIA_TYPE", None),
        ("POST", "/v1/exec-jobs", {**job, "command": 7}, {}, 422, "INVALID_REQUEST", "command"),
        ("POST", "/v1/exec-jobs", {**job, "comand": "x"}, {}, 422, "INVALID_REQUEST", "comand"),
        ("POST", "/v1/exec-jobs", {"command": "touch ran"}, {}, 422, "INVALID_REQUEST", "sandbox_id"),
        ("POST", "/v1/exec-jobs", {**job, "sandbox_id": "no-such"}, {}, 404, "SANDBOX_NOT_FOUND", None),
        ("POST", "/v1/exec-jobs", {**job, "sandbox_id": "../x"}, {}, 404, "SANDBOX_NOT_FOUND", None),
        ("POST", "/v1/exec-jobs", {**job, "command": ""}, {}, 422, "INVALID_REQUEST", "command"),
        ("POST", "/v1/exec-jobs", {**job, "command": " \n"}, {}, 422, "INVALID_REQUEST", "command"),
        ("POST", "/v1/exec-jobs", {**job, "command": "a\0b"}, {}, 422, "INVALID_REQUEST", "command"),
        ("POST", "/v1/exec-jobs", {**job, "command": LONG}, {}, 413, "PAYLOAD_TOO_LARGE", "command"),
        ("POST", "/v1/exec-jobs", {**job, "timeout": 14_401}, {}, 422, "INVALID_REQUEST", "timeout"),
        ("POST", "/v1/exec", {**job, "timeout": 7_201}, {}, 422, "INVALID_REQUEST", "timeout"),
        ("POST", "/v1/exec-jobs", {**job, "cwd": "a\0b"}, {}, 422, "INVALID_REQUEST", "cwd"),
        ("POST", "/v1/exec-jobs", {**job, "env": {"A=B": "x"}}, {}, 422, "INVALID_REQUEST", "env"),
        ("POST", "/v1/exec-jobs", {**job, "env": {"A": "a\0b"}}, {}, 422, "INVALID_REQUEST", "env.A"),
        ("POST", "/v1/exec-jobs", {**job, "metadata": {"a b": "c"}}, {}, 422, "INVALID_REQUEST", "metadata.a b"),
        ("POST", "/v1/exec-jobs", {**job, "metadata": {"a": "-"}}, {}, 422, "INVALID_REQUEST", "metadata.a"),
        ("POST", "/v1/sandboxes", {"metadata": {"a": "x" * 64}}, {}, 422, "INVALID_REQUEST", "metadata.a"),
        ("POST", "/v1/sandboxes", {"metadata": {"a": "ü"}}, {}, 422, "INVALID_REQUEST", "metadata.a"),
        ("POST", "/v1/sandboxes", {"timeout": 10}, {}, 422, "INVALID_REQUEST", "timeout"),
        ("POST", "/v1/sandboxes", {"env": {"": "x"}}, {}, 422, "INVALID_REQUEST", "env"),
        ("POST", "/v1/sandboxes", {"env": {"A\n": "x"}}, {}, 422, "INVALID_REQUEST", "env.A?"),
        ("POST", "/v1/sandboxes", {"image": "Not An Image"}, {}, 422, "INVALID_REQUEST", "image"),
        ("POST", "/v1/sandboxes", {"resources": {"memory": "262144K"}}, {}, 422, "INVALID_REQUEST", "resources.memory"),
        ("POST", "/v1/sandboxes", {"resources": {"cpu": "two"}}, {}, 422, "INVALID_REQUEST", "resources.cpu"),
        ("GET", "/v1/sandboxes?metadata=oncebox.io/tenant=x", None, {}, 422, "INVALID_REQUEST", "metadata"),
        ("GET", "/v1/exec-jobs?metadata=oncebox.io/tenant=x", None, {}, 422, "INVALID_REQUEST", "metadata"),
        ("POST", "/v1/exec-jobs", job, {"Idempotency-Key": "a b"}, 400, key, None),
        ("POST", "/v1/exec-jobs", job, {"Idempotency-Key": "a\x7fb"}, 400, key, None),
        ("POST", "/v1/exec-jobs", job, {"Idempotency-Key": "x" * 256}, 400, key, None),
        ("POST", "/v1/exec-jobs", job, {"Idempotency-Key": '""'}, 400, key, None),
        ("POST", "/v1/sandboxes", {}, {"Idempotency-Key": "ü"}, 400, key, None),
        ("POST", "/v1/exec-jobs", job, {"Origin": "https://evil.example"}, 403, "FORBIDDEN", None),
        ("POST", "/v1/exec-jobs", job, {"Host": "evil.example"}, 403, "FORBIDDEN", None),
        ("GET", "/v1/exec-jobs?limit=1", None, {}, 422, "INVALID_REQUEST", "limit"),
        ("GET", "/v1/exec-jobs?page_token=x", None, {}, 422, "INVALID_REQUEST", "page_token"),
        ("GET", "/v1/exec-jobs/cmd_x", None, {}, 404, "JOB_NOT_FOUND", None),
    ]  # fmt: skip
    for owner in ("..", ".", "a/b", "", "x" * 200, "a b", "a\0", "ä"):
        request = {"workspace_owner": owner}
        found.append(("POST", "/v1/sandboxes", request, {}, 422, "INVALID_REQUEST", "workspace_owner"))
    return found


def test_bad_input_is_refused_and_leaves_nothing(replica: Replica, redis_server: RedisServer) -> None:
    sandbox = replica.sandbox()
    before = keys(redis_server)
    for method, target, body, headers, status, code, field in cases(sandbox):
        answer = replica.ask(method, target, body, **headers)
        case = (method, target, str(body)[:80], headers, answer.data)
        assert (answer.status, answer.json()["code"]) == (status, code), case
        assert answer.headers["Content-Type"] == "application/problem+json", case
        if field is not None:
            assert [item["field"] for item in answer.json()["errors"]] == [field], case
    assert keys(redis_server) == before
    assert replica.ask("GET", "/v1/exec-jobs").json()["items"] == []
    assert len(replica.ask("GET", "/v1/sandboxes").json()["items"]) == 1
    ran = replica.ask("POST", "/v1/exec", {"sandbox_id": sandbox, "command": "ls"})
    assert ran.json()["stdout"] == ""


def keys(server: RedisServer) -> set[str]:
    """All but what is remembered for seconds: ids that nobody knows, so that they cost the engine nothing."""
    with server.client() as client:
        found = {key if isinstance(key, str) else key.decode() for key in client.keys("*")}
        return {key for key in found if ":memo:miss:" not in key or not 0 < client.pttl(key) < 10_000}
