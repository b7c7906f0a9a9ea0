"""The local engine against exchanges recorded from the real one: the same status, headers, body and timing.

Ids, times and addresses differ and are mapped. Everything else that differs stands in `EXCEPTIONS`, by the name of
the exchange, with its reason.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.contract.local_engine_rig import KEY, Answer, RunningEngine, RunningSandbox, call, objects
from tests.support.processes import Spawner
from tests.support.waiting import PATIENCE

VECTORS = Path(__file__).parent.parent / "vectors" / "engine_transcripts"
IMMEDIATE = 0.5
"""Seconds below which an answer is immediate; above, the real engine did something that takes its time."""

EVENTUALLY = PATIENCE
"""Seconds in which a read must show what the recording shows: the recording's own waits are not in it."""

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z?")
KEPT_HEADERS = (
    "content-type", "cache-control", "x-accel-buffering", "transfer-encoding", "content-disposition",
    "content-range", "accept-ranges", "execd-commands-tail-cursor", "x-content-type-options", "vary",
)  # fmt: skip


@dataclass(frozen=True)
class Allowance:
    """What may differ in an exchange, and why."""

    reason: str
    body: bool = False
    message: bool = False
    timing: bool = False
    headers: bool = False


WORDING = "the wording is another; code and shape are the same"
NO_CONTAINER = "no container has to be started, so a create does not take a second"
CONTAINER = "the output tells of the container: host name, directory, files, processes"
RACE = "recorded while the command was ending; it may have ended by now"
NOT_ROOT = "only root can run a command as another user"

EXCEPTIONS: dict[str, Allowance] = {
    "create, bad image": Allowance("there is no registry that could refuse: " + WORDING, message=True),
    "endpoint": Allowance("the address has a path of another form, still without a scheme", body=True),
    "endpoint, other port": Allowance("as the endpoint", body=True),
    "proxy command": Allowance(CONTAINER, body=True),
    "ping paused by proxy": Allowance("the client here gives up sooner", timing=True),
    "openapi": Allowance("a list of the paths only; the real document describes what is not here", body=True),
    "status at once": Allowance(RACE, body=True),
    "delete": Allowance("no container has to be stopped", timing=True),
    **{
        name: Allowance(NO_CONTAINER, timing=True)
        for name in (
            "create", "create same metadata again", "create, no timeout", "create, timeout null",
            "create, metadata empty value", "create, unknown field", "create, entrypoint missing program",
            "create, entrypoint exits", "create, host volume", "create, host volume subPath missing",
            "create, two volumes one source",
        )
    },
}  # fmt: skip

KUBERNETES: dict[str, Allowance] = {
    "create, bad image": Allowance("nothing is pulled, and the id is another", message=True, timing=True),
    "endpoint": Allowance("the pod has another address", body=True),
    "endpoint, other port": Allowance("as the endpoint", body=True),
    "proxy, closed port": Allowance("the pod has another address: " + WORDING, message=True),
    **{
        name: Allowance("a create is taken back sooner here: " + WORDING, message=True, timing=True)
        for name in ("create, entrypoint missing program", "create, entrypoint exits", "create, bad cpu")
    },
    **{
        name: EXCEPTIONS[name]
        for name in (
            "create same metadata again", "create, no timeout", "create, timeout null", "create, metadata empty value",
            "create, unknown field", "proxy command", "openapi",
        )
    },
    "create": Allowance(NO_CONTAINER, timing=True),
}  # fmt: skip
"""As `EXCEPTIONS`, of the exchanges with the Kubernetes runtime."""

if os.geteuid() != 0:
    for name in ("unknown user", "background unknown uid", "status unknown uid", "logs unknown uid"):
        EXCEPTIONS[name] = Allowance(NOT_ROOT, body=True, headers=True, timing=True)

NOTHING = Allowance("")


def load(name: str) -> list[dict[str, Any]]:
    """The exchanges of a file, in order."""
    with (VECTORS / f"{name}.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


class Replay:
    """Sends recorded requests and compares; learns how ids and times correspond as it goes."""

    def __init__(
        self, base: str, substitutes: dict[str, str], exceptions: Mapping[str, Allowance] = EXCEPTIONS
    ) -> None:
        self.base = base
        self.exceptions = exceptions
        self.substitutes = dict(substitutes)
        self.shift: timedelta | None = None

    def request(self, exchange: dict[str, Any], timeout: float) -> Answer:
        """Send the exchange's request, with what it refers to in today's ids and times."""
        recorded = exchange["request"]
        body: Any = None
        if "body" in recorded:
            body = json.loads(self.mapped(json.dumps(recorded["body"])))
            if cut := re.fullmatch(
                r"(true # )x+\.\.\. \((\d+) characters\)", str(body.get("command") if isinstance(body, dict) else "")
            ):
                body["command"] = cut[1] + "x" * (int(cut[2]) - len(cut[1]))
            if "expiresAt" in body:
                body["expiresAt"] = self.shifted(body["expiresAt"])
        elif "text" in recorded:
            body = self.mapped(recorded["text"]).encode()
        elif "headers" in recorded and "Content-Type" in recorded["headers"]:
            body = b"{not json"
        headers = {"OPEN-SANDBOX-API-KEY": KEY, **recorded.get("headers", {})}
        return call(
            self.base + self.mapped(recorded["path"]), recorded["method"], body, headers=headers, timeout=timeout
        )

    def mapped(self, text: str) -> str:
        """A recorded text with what it names replaced by what stands for it here."""
        for old, new in self.substitutes.items():
            text = text.replace(old, new)
        return text

    def shifted(self, text: str) -> str:
        """A recorded time, as far from now as it was from then."""
        assert self.shift is not None
        moved = datetime.fromisoformat(text.removesuffix("Z")) + self.shift
        return moved.replace(microsecond=0).isoformat() + ("Z" if text.endswith("Z") else "")

    def learn(self, recorded: Any, live: Any) -> None:
        """Note which ids of the answers correspond."""
        if isinstance(recorded, dict) and isinstance(live, dict):
            old, new = recorded.get("id"), live.get("id")
            if isinstance(old, str) and isinstance(new, str):
                self.substitutes[old] = new


def plain(value: Any) -> Any:
    """JSON with its times made alike."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, str) and TIME.fullmatch(value):
        return "<time>"
    if isinstance(value, str):
        return re.sub(r"127\.0\.0\.1:\d+", "<address>", value)
    return value


def without_sizes(value: Any) -> Any:
    """Without the sizes of directories, which are the file system's."""
    if isinstance(value, list):
        return [without_sizes(each) for each in value]
    if isinstance(value, dict):
        kept = {name: without_sizes(each) for name, each in value.items()}
        return {**kept, "size": "<size>"} if kept.get("type") == "directory" else kept
    return value


def without_message(value: Any) -> Any:
    return {**value, "message": "<message>"} if isinstance(value, dict) and "message" in value else value


def without_pings(events: list[dict[str, Any]]) -> dict[str, Any]:
    """A stream's events, by what is certain: all in order, but stdout and stderr each for themselves."""
    kept: dict[str, Any] = {"stdout": [], "stderr": [], "others": []}
    for event in events:
        known = {key: value for key, value in event.items() if key not in ("timestamp", "execution_time")}
        if event.get("type") in ("stdout", "stderr"):
            kept[event["type"]].append(known)
        elif event.get("type") != "ping":
            kept["others"].append(known)
        if "type" in event:
            assert isinstance(event["timestamp"], int)
    return {**kept, "pings": sum(event.get("type") == "ping" for event in events)}


def differences(exchange: dict[str, Any], answer: Answer, replay: Replay) -> list[str]:
    """What is not as recorded, exceptions left out."""
    allowed = replay.exceptions.get(exchange["name"], NOTHING)
    found: list[str] = []
    if answer.status != exchange["status"]:
        found.append(f"status {answer.status}, recorded {exchange['status']}: {answer.body[:300]!r}")
    if not allowed.headers:
        found += compare_headers(exchange, answer, replay)
    if "chunks" in exchange and answer.status == 200:
        found += compare_stream(exchange, answer, replay, allowed)
    elif not allowed.body:
        found += compare_body(exchange, answer, replay, allowed)
    return found


def at_other_times(exchange: dict[str, Any], answer: Answer, replay: Replay) -> list[str]:
    """What came earlier or later than recorded."""
    if replay.exceptions.get(exchange["name"], NOTHING).timing:
        return []
    times = [("head_after_s", exchange["head_after_s"], answer.head_after)]
    times += [("end_after_s", exchange["end_after_s"], answer.end_after)]
    if "chunks" in exchange and answer.status == 200:
        last = exchange["chunks"][-1][0]
        times += [
            ("open after its last event", exchange["end_after_s"] - last, answer.end_after - answer.chunks[-1][0])
        ]
    return [f"{name} {live:.3f}, recorded {was:.3f}" for name, was, live in times if not same_timing(was, live)]


def compare_headers(exchange: dict[str, Any], answer: Answer, replay: Replay) -> list[str]:
    recorded = {name.lower(): replay.mapped(value) for name, value in exchange["headers"].items()}
    if exchange.get("body_bytes", 0) > 0:
        # A long body goes out in chunks there and with its length here, or the other way round.
        recorded.pop("transfer-encoding", None)
        answer.headers.pop("transfer-encoding", None)
    return [
        f"header {name} {answer.headers.get(name)!r}, recorded {recorded.get(name)!r}"
        for name in KEPT_HEADERS
        if answer.headers.get(name) != recorded.get(name)
    ]


def compare_body(exchange: dict[str, Any], answer: Answer, replay: Replay, allowed: Allowance) -> list[str]:
    if "body_bytes" in exchange:
        size = exchange["body_bytes"]
        # Zeros at the end of a time's fraction are left out.
        slack = 18 if answer.headers["content-type"].startswith("application/json") else 0
        return [] if abs(len(answer.body) - size) <= slack else [f"{len(answer.body)} bytes, recorded {size}"]
    text = exchange["body"]
    live: Any
    recorded: Any
    if (
        exchange["headers"]
        .get("content-type", exchange["headers"].get("Content-Type", ""))
        .startswith("application/json")
    ):
        live, was = answer.json, json.loads(text)
        replay.learn(was, live)
        live, recorded = plain(live), plain(json.loads(replay.mapped(text)))
        if allowed.message:
            live, recorded = without_message(live), without_message(recorded)
    else:
        live, recorded = answer.body.decode("utf-8", "backslashreplace"), text
    return [] if without_sizes(live) == without_sizes(recorded) else [f"body {live!r}, recorded {recorded!r}"]


def compare_stream(exchange: dict[str, Any], answer: Answer, replay: Replay, allowed: Allowance) -> list[str]:
    raw = "".join(text for _, text in exchange["chunks"])
    recorded, live = list(objects(raw)), answer.events
    assert live[0]["type"] == "init"
    replay.substitutes[recorded[0]["text"]] = live[0]["text"]
    replay.shift = timedelta(milliseconds=live[0]["timestamp"] - recorded[0]["timestamp"])
    recorded = list(objects(replay.mapped(raw)))
    found: list[str] = []
    if allowed.body:
        if {event.get("type") for event in live} != {event.get("type") for event in recorded}:
            found.append("other types of events")
    elif without_pings(live) != without_pings(recorded):
        found.append(f"events {without_pings(live)!r}, recorded {without_pings(recorded)!r}")
    framed = raw.endswith("\n\n")
    if answer.body.endswith(b"\n\n") != framed or answer.body.count(b"\n\n") != len(live) - (not framed):
        found.append("the frames are not bare objects with an empty line behind each")
    return found


def same_timing(recorded: float, live: float) -> bool:
    """The same kind: immediate, or about as many seconds (machines under load are slower, never quicker)."""
    if recorded < IMMEDIATE:
        return live < IMMEDIATE + 1.0
    return recorded - 0.35 < live < recorded + 2.5


def replay_all(exchanges: list[dict[str, Any]], replay: Replay, patient: Callable[[dict[str, Any]], bool]) -> None:
    """Send all, in order; every difference is reported. `patient`: reads that may need a moment to be as recorded.

    A machine that stands still now and then brings some at other times, but not one in ten.
    """
    wrong: list[str] = []
    times: list[str] = []
    for exchange in exchanges:
        if exchange["status"] is None:
            with pytest.raises(TimeoutError):
                replay.request(exchange, timeout=1.0)
            continue
        deadline = time.monotonic() + EVENTUALLY
        while True:
            answer = replay.request(exchange, timeout=PATIENCE)
            found = differences(exchange, answer, replay)
            if not found or not patient(exchange) or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        wrong += [f"{exchange['name']}: {each}" for each in found]
        if at := at_other_times(exchange, answer, replay):
            times.append(f"{exchange['name']}: {at}")
    assert not wrong, "\n".join(wrong)
    assert len(times) <= 1 + len(exchanges) // 10, "\n".join(times)


@pytest.fixture(params=["auto"])
def engine(spawn: Spawner, tmp_path: Path, request: pytest.FixtureRequest) -> RunningEngine:
    return RunningEngine(spawn, "--isolation", request.param, root=tmp_path / "engine")


@pytest.mark.parametrize("engine", ["auto", "plain"], indirect=True)
def test_the_lifecycle_server_answers_as_recorded(engine: RunningEngine) -> None:
    """All exchanges in order: each depends on the sandboxes that are there by then."""
    replay = Replay(
        engine.url,
        {"/srv/volumes": str(engine.volume_root), "path=/etc/debian_version": "path=/tmp/debian_version"},
    )
    exchanges = load("lifecycle")
    made = next(i for i, exchange in enumerate(exchanges) if exchange["name"] == "proxy command")
    replay_all(exchanges[:made], replay, lambda exchange: False)
    first = replay.substitutes[json.loads(exchanges[5]["body"])["id"]]
    RunningSandbox(engine, first).write("/tmp/debian_version", b"12.11\n")
    replay_all(exchanges[made:], replay, lambda exchange: False)


def test_the_lifecycle_server_answers_as_recorded_on_kubernetes(spawn: Spawner, tmp_path: Path) -> None:
    """All exchanges in order. A pause without a registry is over after a moment, which the recording waited for."""
    engine = RunningEngine(
        spawn,
        "--like",
        "kubernetes",
        "--ready-timeout",
        "1.5",
        "--volume-root",
        tmp_path / "allowed",
        root=tmp_path / "e",
    )
    replay = Replay(
        engine.url,
        {"/srv/allowed": str(tmp_path / "allowed"), "path=/etc/debian_version": "path=/tmp/debian_version"},
        KUBERNETES,
    )
    exchanges = load("kubernetes")
    made = next(i for i, exchange in enumerate(exchanges) if exchange["name"] == "proxy command")
    replay_all(exchanges[:made], replay, lambda exchange: False)
    first = replay.substitutes[json.loads(exchanges[5]["body"])["id"]]
    RunningSandbox(engine, first).write("/tmp/debian_version", b"12.11\n")
    replay_all(exchanges[made:], replay, lambda exchange: exchange["name"] == "get paused")


@pytest.mark.timeout(240)
def test_execd_answers_as_recorded(engine: RunningEngine) -> None:
    """All exchanges in order, over the direct endpoint. Reads may wait for what the recording waited for."""
    sandbox = engine.create(resourceLimits={"cpu": "500m", "memory": "1Gi"})
    sandbox.write("/tmp/rec-file", b"0123456789")
    replay_all(
        load("execd"),
        Replay(sandbox.execd, {}),
        lambda exchange: exchange["request"]["method"] == "GET",
    )


@pytest.fixture
def files_directory() -> Iterator[str]:
    """In plain mode it is the machine's."""
    directory = f"/tmp/oncebox-{secrets.token_hex(3)}"
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.timeout(240)
@pytest.mark.skipif(os.geteuid() != 0, reason="recorded as root, with owners")
@pytest.mark.parametrize("engine", ["auto", "plain"], indirect=True)
def test_files_and_users_are_as_recorded(engine: RunningEngine, files_directory: str) -> None:
    """All exchanges in order, each with the files that the ones before it made."""
    env = {"HOME": f"{files_directory}/home", "ONCEBOX_FILES": files_directory}
    sandbox = engine.create(env=env, resourceLimits={"cpu": "500m", "memory": "64Mi"})
    replay = Replay(
        sandbox.execd, {"/tmp/oncebox-files": files_directory, quote("/tmp/oncebox-files"): files_directory}
    )
    replay_all(load("files"), replay, lambda exchange: False)


def test_no_exception_is_for_an_exchange_that_does_not_exist() -> None:
    names = {exchange["name"] for name in ("lifecycle", "execd", "files") for exchange in load(name)}
    assert set(EXCEPTIONS) <= names
    assert set(KUBERNETES) <= {exchange["name"] for exchange in load("kubernetes")}
    assert all(exception.reason for exception in (*EXCEPTIONS.values(), *KUBERNETES.values()))
    assert len(load("lifecycle")) + len(load("execd")) == 185
    assert [each["name"] for each in load("kubernetes")] == [each["name"] for each in load("lifecycle")]
