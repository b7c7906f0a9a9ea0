"""A served replica as a process of its own, and a plain HTTP client for it."""

import base64
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
import urllib3

from tests.support.processes import ManagedProcess, Spawner
from tests.support.waiting import PATIENCE

SERVE = """
import sys
from service.server.command import serve
from service.settings import load
if __name__ == "__main__":
    sys.exit(serve(load(), workers=int(sys.argv[1])))
"""


MARK = "MARKED-in-acceptance"
"""Stands in every command and in a variable of everything that is made; see ``conftest``."""


MAKING = ("/sandboxes", "/exec", "/exec-jobs")


class Replica:
    """A running replica. ``ask`` speaks HTTP to it, ``raw`` bytes. Both are marked, and their problems written down."""

    def __init__(
        self, spawn: Spawner, env: Mapping[str, str] | None = None, *, workers: int = 1, program: str = SERVE
    ) -> None:
        settings = {
            "ONCEBOX_BIND": "127.0.0.1:0",
            "ONCEBOX_ENGINE_INTERVAL": "0.5",
            "OTEL_TRACES_EXPORTER": os.environ.get("ACCEPTANCE_TRACES", "none"),
            **(env or {}),
        }
        command = [sys.executable, "-P", "-c", program, str(workers)]
        self.process: ManagedProcess = spawn(command, name="replica", env=settings)
        self.url: str = msgspec.json.decode(self.process.wait_for_line(r'^\{"url".*$')[0])["url"]
        self.http = urllib3.PoolManager(maxsize=64, retries=False)

    def ask(self, method: str, target: str, body: Any = None, **headers: str) -> urllib3.BaseHTTPResponse:
        """An answer, read whole. Underscores in names of headers stand for dashes."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        raw = None
        if body is not None:
            if target.removeprefix("/v1") in MAKING:
                body = marked(body)
            raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
            sent.setdefault("Content-Type", "application/json")
        answer = self.http.request(method, self.url + target, body=raw, headers=sent, timeout=60)
        if answer.status >= 400:
            problems = self.process.stderr_path.with_suffix(".problems.err")
            with problems.open("ab") as file:
                file.write(repr(answer.headers).encode() + answer.data)
        return answer

    def sandbox(self, **request: Any) -> str:
        """A new sandbox's id."""
        answer = self.ask("POST", "/v1/sandboxes", request)
        assert answer.status == 201, answer.data
        return str(answer.json()["sandbox_id"])

    def submit(self, sandbox_id: str, command: str, key: str | None = None, **request: Any) -> str:
        """A new job's id."""
        headers = {"Idempotency_Key": key} if key is not None else {}
        answer = self.ask("POST", "/v1/exec-jobs", {"sandbox_id": sandbox_id, "command": command, **request}, **headers)
        assert answer.status == 202, answer.data
        return str(answer.json()["command_id"])

    def follow(self, command_id: str) -> tuple[dict[str, Any], bytes]:
        """The job at its end, and its whole output, read by cursor."""
        output, target = b"", f"/v1/exec-jobs/{command_id}?wait=20&encoding=base64"
        deadline = time.monotonic() + PATIENCE
        cursor = None
        job: dict[str, Any] = {}
        while time.monotonic() < deadline:
            answer = self.ask("GET", target + (f"&cursor={cursor}" if cursor else ""))
            assert answer.status == 200, answer.data
            job = answer.json()
            chunk = base64.b64decode(job["output"])
            output = chunk if job["replace"] else output + chunk
            cursor = job["cursor"]
            if cursor is None:
                return job, output
        raise AssertionError(f"no end of {command_id}: {job}")

    def events(self, command_id: str, **headers: str) -> Iterator[tuple[str, str, Any]]:
        """Name, id and data of each event as it comes."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        target = f"{self.url}/v1/exec-jobs/{command_id}/events"
        answer = self.http.request("GET", target, headers=sent, preload_content=False, timeout=60)
        assert answer.status == 200
        try:
            fields: dict[str, str] = {}
            for line in lines_of(answer):
                name, _, value = line.partition(": ")
                if line:
                    fields[name] = value
                elif "event" in fields:
                    yield fields["event"], fields["id"], msgspec.json.decode(fields["data"])
                    fields = {}
        finally:
            answer.close()

    def raw(
        self, sent: bytes, *, then: Callable[[socket.socket], None] | None = None, timeout: float = PATIENCE
    ) -> bytes:
        """All that comes back on a connection of its own until it is closed."""
        with socket.create_connection((urlsplit(self.url).hostname, urlsplit(self.url).port), timeout) as connection:
            connection.sendall(sent)
            if then is not None:
                then(connection)
            received = b""
            while part := connection.recv(65_536):
                received += part
            return received


def lines_of(answer: urllib3.BaseHTTPResponse) -> Iterator[str]:
    """Lines as they come."""
    rest = b""
    while part := answer.read1():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line.decode()


def marked(body: Any) -> Any:
    """The body of a request that makes something, with a mark behind its command and in a variable."""
    if not isinstance(body, dict):
        return body
    marks: dict[str, Any] = {}
    if isinstance(command := body.get("command"), str) and command.strip():
        marks["command"] = f"{command} # {MARK}"
    if isinstance(env := body.get("env", {}), dict):
        marks["env"] = {**env, "MARKED": MARK}
    return {**body, **marks}
