"""The audit trail: one line for each thing that changes state, with who, what and what came of it, and no secrets."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from service import audit, errors
from service.api.auditing import ACTIONS
from service.core.model import identity
from service.core.model.answers import Event
from tests.unit.api import fakes
from tests.unit.api.fakes import JOB, FakeCore, ask, post

RUN = {"sandbox_id": "sb", "command": "echo s3cret", "env": {"A": "s3cret"}}
COMMAND_ID = identity.command_id("sb", "A" * 22)

CHANGES: list[tuple[str, str, Any, dict[str, str]]] = [
    ("POST", "/v1/sandboxes", {}, {"action": "sandbox.create", "sandbox_id": "sb"}),
    ("DELETE", "/v1/sandboxes/sb", None, {"action": "sandbox.delete", "sandbox_id": "sb"}),
    ("POST", "/v1/sandboxes/sb/renew", {"timeout": 60}, {"action": "sandbox.renew", "sandbox_id": "sb"}),
    ("POST", "/sandboxes/sb/pause", {}, {"action": "sandbox.pause", "sandbox_id": "sb"}),
    ("POST", "/v1/sandboxes/sb/resume", {}, {"action": "sandbox.resume", "sandbox_id": "sb"}),
    ("POST", "/exec-jobs", RUN, {"action": "job.submit", "command_id": COMMAND_ID, "sandbox_id": "sb"}),
    ("POST", "/v1/exec", RUN, {"action": "exec.run", "command_id": COMMAND_ID, "sandbox_id": "sb"}),
    ("PUT", "/v1/sandboxes/sb/files?path=f", b"", {"action": "file.write", "sandbox_id": "sb", "path": "f"}),
    ("DELETE", "/v1/sandboxes/sb/files?path=f", None, {"action": "file.remove", "sandbox_id": "sb", "path": "f"}),
    ("PUT", "/v1/sandboxes/sb/archive?path=d", b"", {"action": "archive.write", "sandbox_id": "sb", "path": "d"}),
    ("POST", "/v1/sandboxes/sb/directories", {"path": "d"},
     {"action": "directory.create", "sandbox_id": "sb", "path": "d"}),
    ("DELETE", f"/v1/exec-jobs/{COMMAND_ID}", None,
     {"action": "job.cancel", "command_id": COMMAND_ID, "sandbox_id": "sb"}),
]  # fmt: skip


@pytest.fixture
def trail(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG)
    for name in ("JOB", "RESULT"):
        monkeypatch.setattr(fakes, name, msgspec.structs.replace(getattr(fakes, name), command_id=COMMAND_ID))
    return caplog


def lines(trail: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [msgspec.json.decode(item.getMessage()) for item in trail.records if item.name == "oncebox.audit"]


async def send(core: FakeCore, method: str, target: str, body: Any, key: str | None = "s3cret-key") -> int:
    headers = [("X-Request-Id", "r1"), ("Authorization", "Bearer s3cret")]
    if key is not None:
        headers.append(("Idempotency-Key", key))
    if method == "POST":
        return (await post(core.app(), target, body, headers=headers)).status
    return (await ask(core.app(), method, target, headers=headers)).status


def test_every_change_is_listed_here() -> None:
    makers = {(endpoint.method, endpoint.shown_path) for endpoint in FakeCore().app().endpoints}
    changing = {(method, path) for method, path in makers if method != "GET"}
    assert changing == set(ACTIONS)
    assert {asked["action"] for _, _, _, asked in CHANGES} == set(ACTIONS.values())


@pytest.mark.parametrize(("method", "target", "body", "said"), CHANGES)
async def test_a_change_leaves_one_line(
    method: str, target: str, body: Any, said: dict[str, str], trail: pytest.LogCaptureFixture
) -> None:
    assert await send(FakeCore(), method, target, body) < 300
    (line,) = lines(trail)
    assert line.items() >= {**said, "tenant": "default", "outcome": "done", "request_id": "r1"}.items()
    if method == "POST":
        assert line["key_digest"] == hashlib.sha256(b"s3cret-key").hexdigest()[:32]
    assert "s3cret" not in trail.text
    (logged,) = [item for item in trail.records if item.levelno == audit.AUDIT]
    assert (logged.name, logged.levelname) == ("oncebox.audit", "AUDIT")


@pytest.mark.parametrize("below", ["files?path=a%20b", "archive?path=a%20b"])
async def test_a_transfer_s_line_has_path_and_size(below: str, trail: pytest.LogCaptureFixture) -> None:
    headers = [("content-length", "5")]
    target = f"/v1/sandboxes/sb/{below}"
    assert (await ask(FakeCore().app(), "PUT", target, headers=headers, body=[b"hello"])).status < 300
    (line,) = lines(trail)
    assert (line["path"], line["size"]) == ("a b", 5)
    assert "hello" not in trail.text


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (errors.SandboxNotFound(sandbox_id="sb"), "refused"),
        (errors.QuotaExceeded(), "refused"),
        (errors.EngineUnavailable(), "refused"),
        (errors.OutcomeUnknown(command_id=COMMAND_ID), "unknown"),
        (RuntimeError("s3cret"), "failed"),
    ],
)
async def test_what_failed_leaves_a_line_too(error: Exception, outcome: str, trail: pytest.LogCaptureFixture) -> None:
    await send(FakeCore(error=error), "POST", "/v1/exec-jobs", RUN)
    (line,) = lines(trail)
    assert line["outcome"] == outcome
    assert line.get("code") == getattr(error, "code", None)
    if outcome != "failed":  # a bug's traceback is not the audit trail's
        assert "s3cret" not in trail.text


async def test_what_was_refused_on_its_way_leaves_a_line(trail: pytest.LogCaptureFixture) -> None:
    assert await send(FakeCore(), "POST", "/v1/exec-jobs", {**RUN, "s3cret": 1}) == 422
    (line,) = lines(trail)
    assert (line["action"], line["outcome"], line["code"]) == ("job.submit", "refused", "INVALID_REQUEST")


async def test_a_replay_says_so(trail: pytest.LogCaptureFixture) -> None:
    await send(FakeCore(replayed=True), "POST", "/v1/exec-jobs", RUN)
    assert [line["outcome"] for line in lines(trail)] == ["replayed"]


async def test_looking_leaves_no_line(trail: pytest.LogCaptureFixture) -> None:
    core = FakeCore(events_script=[Event("end", "x", JOB)])
    for target in ("/v1/sandboxes", "/v1/sandboxes/sb", "/v1/exec-jobs", "/v1/exec-jobs/cmd_x",
                   "/v1/exec-jobs/cmd_x/events", "/healthz", "/readyz", "/nowhere"):  # fmt: skip
        await send(core, "GET", target, None)
    assert not [item for item in trail.records if item.levelno == audit.AUDIT]


class Nobody:
    def authenticate(self, headers: Mapping[str, Sequence[str]]) -> str:
        raise errors.Unauthenticated


async def test_nobody_changes_nothing(trail: pytest.LogCaptureFixture) -> None:
    assert (await post(FakeCore().app(authenticator=Nobody()), "/v1/sandboxes", {})).status == 401
    assert lines(trail) == []
