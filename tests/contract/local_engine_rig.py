"""A local engine that really runs, and a client that hides nothing of what it answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import shutil
import sys
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.processes import ManagedProcess, Spawner
from tests.support.waiting import PATIENCE

KEY = "key-of-the-tests"
CREATE: dict[str, Any] = {
    "image": {"uri": "python:3.12"},
    "entrypoint": ["sleep", "infinity"],
    "resourceLimits": {"cpu": "500m", "memory": "256Mi"},
    "timeout": 600,
}
"""A body that makes a sandbox."""

DEADLINE = PATIENCE
TERMINAL = re.compile(rb'"type":"(execution_complete|error)"|"code":')


@dataclass
class Answer:
    """An answer as it came: header names in lower case, seconds since the request was begun."""

    status: int
    headers: dict[str, str]
    body: bytes
    head_after: float
    end_after: float
    chunks: list[tuple[float, bytes]] = field(default_factory=list)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The objects of a stream, or of a body, one after the other."""
        return list(objects(self.body.decode()))


def objects(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects that follow each other, with white space between them or nothing."""
    decoder, position = json.JSONDecoder(), 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        found, position = decoder.raw_decode(text, position)
        yield found


def call(
    url: str,
    method: str = "GET",
    body: Any = None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float = DEADLINE,
    to_the_end: bool = True,
) -> Answer:
    """One request on a connection of its own. Raises `OSError` and `http.client.HTTPException`.

    Without `to_the_end` the reading stops at a stream's terminal event, a second before its end.
    """
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    begun = time.monotonic()
    try:
        connection.request(method, target, data, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        head_after = time.monotonic() - begun
        chunks: list[tuple[float, bytes]] = []
        while chunk := response.read1(1 << 20):
            chunks.append((time.monotonic() - begun, chunk))
            if not to_the_end and TERMINAL.search(chunk):
                break
        fields = {name.lower(): value for name, value in response.getheaders()}
        whole = b"".join(chunk for _, chunk in chunks)
        return Answer(response.status, fields, whole, head_after, time.monotonic() - begun, chunks)
    finally:
        connection.close()


class RunningEngine:
    """The engine as a process, with a key and with `/_dev`."""

    def __init__(self, spawn: Spawner, *options: str | Path, root: Path, dev_controls: bool = True) -> None:
        self.root = root
        self.volume_root = root / "volumes"
        command = [sys.executable, "-m", "service.local_engine", "--root", root, *options]
        command += ["--dev-controls"] if dev_controls else []
        self.process: ManagedProcess = spawn(command, name="engine", env={"OPEN_SANDBOX_API_KEY": KEY})
        line = self.process.wait_for_line(r"^\{.*\}$")
        ready = json.loads(line[0])
        assert set(ready) == {"url", "isolation"}
        self.url: str = ready["url"]
        self.isolation: str = ready["isolation"]

    def call(self, method: str, path: str, body: Any = None, **options: Any) -> Answer:
        """A call with the key."""
        headers = {"OPEN-SANDBOX-API-KEY": KEY, **options.pop("headers", {})}
        return call(self.url + path, method, body, headers=headers, **options)

    def create(self, **fields: Any) -> RunningSandbox:
        """A new sandbox."""
        answer = self.call("POST", "/v1/sandboxes", {**CREATE, **fields})
        assert answer.status == 202, answer
        return RunningSandbox(self, answer.json["id"])


@dataclass(frozen=True)
class RunningSandbox:
    """One sandbox of a running engine."""

    engine: RunningEngine
    id: str

    @property
    def path(self) -> str:
        return f"/v1/sandboxes/{self.id}"

    @property
    def execd(self) -> str:
        """The address of its daemon."""
        answer = self.engine.call("GET", f"{self.path}/endpoints/44772")
        return "http://" + str(answer.json["endpoint"])

    def state(self) -> str:
        return str(self.engine.call("GET", self.path).json["status"]["state"])

    def run(self, command: str, **fields: Any) -> list[dict[str, Any]]:
        """Run a command in the foreground; its events, pings left out."""
        answer = call(self.execd + "/command", "POST", {"command": command, **fields}, to_the_end=False)
        assert answer.status == 200, answer
        return [event for event in answer.events if event.get("type") != "ping"]

    def output(self, command: str, **fields: Any) -> str:
        """What a command prints in the foreground, its lines joined."""
        events = self.run(command, **fields)
        return "\n".join(event["text"] for event in events if event["type"] in ("stdout", "stderr"))

    def submit(self, command: str, **fields: Any) -> str:
        """Start a command in the background; its id."""
        body = {"command": command, "background": True, **fields}
        answer = call(self.execd + "/command", "POST", body, to_the_end=False)
        assert answer.status == 200, answer
        return str(answer.events[0]["text"])

    def status(self, command: str) -> dict[str, Any]:
        found: dict[str, Any] = call(f"{self.execd}/command/status/{command}").json
        return found

    def wait(self, command: str, timeout: float = DEADLINE) -> dict[str, Any]:
        """The status of a background command when it has ended."""
        deadline = time.monotonic() + timeout
        while (found := self.status(command))["running"]:
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
        return found

    def read(self, path: str, **headers: str) -> Answer:
        """A file's content."""
        return call(f"{self.execd}/files/download?path={urllib.parse.quote(path)}", headers=headers)

    def write(self, path: str, content: bytes) -> None:
        """Make a file, by upload."""
        metadata = json.dumps({"path": path}).encode()
        parts = [(b"metadata", b"metadata", metadata), (b"file", b"file", content)]
        body = b"".join(
            b'--x\r\nContent-Disposition: form-data; name="%s"; filename="%s"\r\n\r\n%s\r\n' % part for part in parts
        )
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        answer = call(self.execd + "/files/upload", "POST", body + b"--x--\r\n", headers=headers)
        assert answer.status == 200, answer

    def delete(self) -> Answer:
        return self.engine.call("DELETE", self.path)


@contextlib.contextmanager
def shared_engine(folder: Path, *options: str | Path) -> Iterator[RunningEngine]:
    """An engine for the tests of a whole module, which keep to sandboxes of their own."""
    spawn = Spawner(folder)
    try:
        yield RunningEngine(spawn, *options, root=folder / "engine")
    finally:
        spawn.kill_all()


BWRAP_MISSING = "" if shutil.which("bwrap") else "bwrap is not installed: sandboxes are plain processes here"
"""Why tests of isolation are skipped, if they are."""
