"""The recorded exchanges with a real engine, each read by the client's parsers."""

import json
from pathlib import Path
from typing import Any

import pytest

from service.engine import wire
from service.engine.events import CommandStream
from service.engine.outcomes import CallKind, CallReport, Phase, Side, TransportFailure, outcome
from service.ports.engine import (
    CommandMissing,
    CommandNotRunning,
    CommandStatus,
    Denied,
    EngineError,
    FileMissing,
    Refused,
    SandboxMissing,
    SandboxNotReady,
    StartFailed,
    Unclear,
)

VECTORS = Path(__file__).parents[2] / "vectors" / "engine_transcripts"


def _load(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (VECTORS / f"{file}.jsonl").read_text().splitlines()]


RECORDED = [(file, each) for file in ("lifecycle", "execd") for each in _load(file)]


def _call(file: str, request: dict[str, Any]) -> CallKind:
    method, path = request["method"], request["path"].partition("?")[0]
    if path.endswith("/command") and method == "POST":
        return CallKind.SUBMIT if request.get("body", {}).get("background") else CallKind.STREAM
    for end, call in (
        ("/command", CallKind.INTERRUPT),
        ("/logs", CallKind.LOG),
        ("/files/download", CallKind.READ),
        ("/files/info", CallKind.READ),
        ("/renew-expiration", CallKind.RENEW),
        ("/pause", CallKind.PAUSE),
        ("/resume", CallKind.RESUME),
        ("/ping", CallKind.PING),
    ):
        if path.endswith(end):
            return call
    if "/command/status/" in path:
        return CallKind.STATUS
    if "/endpoints/" in path:
        return CallKind.ENDPOINT
    if file == "execd":
        return CallKind.STATUS
    if path.endswith("/sandboxes"):
        return CallKind.CREATE if method == "POST" else CallKind.LIST
    return CallKind.DELETE if method == "DELETE" else CallKind.GET


def _exchange(file: str, recorded: dict[str, Any]) -> CallReport:
    headers = {name.lower(): value for name, value in recorded["headers"].items()}
    side = Side.DIRECT if file == "execd" else Side.LIFECYCLE
    if "/proxy/" in recorded["request"]["path"]:
        side = Side.PROXY
    timed_out = recorded["status"] is None
    return CallReport(
        call=_call(file, recorded["request"]),
        side=side,
        phase=Phase.SENT if timed_out else Phase.HEAD,
        failure=TransportFailure.TIMEOUT if timed_out else None,
        status=recorded["status"] or 0,
        content_type=headers.get("content-type", ""),
        body=(recorded.get("body") or "").encode(),
    )


EXPECTED: dict[str, type[EngineError]] = {
    "list, no key": Denied,
    "list, wrong key": Denied,
    "get unknown": SandboxMissing,
    "get uuid unknown": SandboxMissing,
    "endpoint of unknown": SandboxMissing,
    "proxy, unknown sandbox": SandboxMissing,
    "proxy to deleted": SandboxMissing,
    "pause deleted": SandboxMissing,
    "renew unknown": SandboxMissing,
    "delete again": SandboxMissing,
    "get deleted": SandboxMissing,
    "pause again": SandboxNotReady,
    "resume again": SandboxNotReady,
    "proxy, closed port": Unclear,
    "proxy, unknown execd path": Unclear,
    "ping paused by proxy": Unclear,
    "head ping": Unclear,
    "unknown route": Unclear,
    "wrong method": Unclear,
    "interrupt finished": CommandNotRunning,
    "interrupt unknown": CommandNotRunning,
    "status unknown": CommandMissing,
    "files info missing": FileMissing,
    "files download missing": FileMissing,
}
"""By name; any other status of 400 and above is a refusal. (Two names occur on both sides.)"""
LIFECYCLE_ONLY = {"unknown route": Refused, "wrong method": Refused}


@pytest.mark.parametrize(("file", "recorded"), RECORDED, ids=[f"{file}: {each['name']}" for file, each in RECORDED])
def test_every_recorded_exchange_comes_to_what_it_meant(file: str, recorded: dict[str, Any]) -> None:
    found = outcome(_exchange(file, recorded))
    expected: type[EngineError] | None = EXPECTED.get(recorded["name"])
    if file == "lifecycle":
        expected = LIFECYCLE_ONLY.get(recorded["name"], expected)
    if expected is None and (recorded["status"] or 0) >= 400 and recorded["status"] != 416:
        expected = Refused
    assert (type(found) if found else None) is expected
    if found is None:
        _read(file, recorded)


def _read(file: str, recorded: dict[str, Any]) -> None:
    """An answer must be readable, too."""
    call, body = _call(file, recorded["request"]), (recorded.get("body") or "").encode()
    if "body_head" in recorded or recorded["request"]["path"] in ("/health", "/version"):
        return
    if call in (CallKind.SUBMIT, CallKind.STREAM):
        _read_stream(recorded)
    elif call in (CallKind.CREATE, CallKind.GET):
        assert wire.sandbox(body).id
    elif call is CallKind.LIST:
        assert wire.listing(body).has_next is (recorded["name"] == "list, page size 1")
    elif call is CallKind.RENEW:
        assert wire.renewed(body) > 1_700_000_000
    elif call is CallKind.ENDPOINT:
        assert wire.decode(body, wire.WireEndpoint, "endpoint").endpoint
    elif call is CallKind.STATUS:
        command = recorded["request"]["path"].rpartition("/")[2]
        _check_status(wire.command_status(body, command))


def _check_status(status: CommandStatus) -> None:
    assert status.started_at is not None
    assert (status.signal is not None) == (status.exit_code == -1)
    assert status.running == (status.exit_code is None) == (status.finished_at is None)


ENDS: dict[str, int | type[EngineError]] = {
    "foreground exit 3": 3,
    "foreground timeout 1 s": -1,
    "foreground signal": -1,
    "command with nul": StartFailed,
    "command of 200 kB": StartFailed,
    "background 200 kB": StartFailed,
}


def _read_stream(recorded: dict[str, Any]) -> None:
    stream, events = CommandStream(), []
    for _, piece in recorded["chunks"]:
        events += stream.feed(piece.encode())
    expected = ENDS.get(recorded["name"], 0)
    assert stream.command is not None
    if isinstance(expected, type):
        stream.finish()
        assert type(stream.failure) is expected
        return
    assert stream.over
    assert stream.failure is None
    assert events[-1].exit_code == expected


def test_all_recordings_are_here() -> None:
    assert len(RECORDED) == 185
