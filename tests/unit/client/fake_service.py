"""A small Oncebox in memory, made from the contract alone and no kinder than it. No I/O, no time of its own.

It refuses what the contract refuses (unknown fields and parameters, cursors that it did not make, keys reused), hands
out output in small blocks that never cut a character, lets bytes come after the terminal state, says that output is
complete only once a read brought nothing new (a caller's, or its own some seconds later), and then knows no cursor but
null at its end.
"""

from __future__ import annotations

import base64
import codecs
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from service.client.steps import Answer

START = "2026-01-01T00:00:00.000Z"
BLOCK = 64
"""Bytes of output an answer: so that reading takes many."""
CLOSES = 3.0
"""Seconds after a job's end in which the service reads the rest by itself, whoever watches."""


@dataclass(frozen=True)
class Script:
    """What a command does: blocks at seconds after its start, and how it ends."""

    blocks: tuple[tuple[float, bytes], ...] = ()
    ends: float = 0.0
    exit_code: int | None = 0
    state: str = "exited"
    reason: str | None = None
    errors: tuple[tuple[float, bytes], ...] = ()
    """What a job with its streams apart writes to its stderr."""

    @property
    def output(self) -> bytes:
        return b"".join(block for _, block in self.blocks)


@dataclass
class FakeJob:
    id: str
    sandbox_id: str
    command: str
    script: Script
    started: float
    timeout: int
    kind: str = "job"
    metadata: dict[str, str] = field(default_factory=dict)
    cancelled: float | None = None
    drained: set[str | None] = field(default_factory=set)
    apart: bool = False

    def ends(self) -> float:
        end = self.started + self.script.ends
        return end if self.cancelled is None else min(end, self.cancelled)

    def over(self, now: float) -> bool:
        return now >= self.ends()

    def blocks(self, stream: str | None = None) -> tuple[tuple[float, bytes], ...]:
        return self.script.errors if stream == "stderr" else self.script.blocks

    def written(self, now: float, stream: str | None = None) -> bytes:
        blocks = self.blocks(stream)
        return b"".join(block for at, block in blocks if self.started + at <= now)

    def next_event(self, now: float, stream: str | None = None) -> float | None:
        times = [self.started + at for at, _ in self.blocks(stream)] + [self.ends()]
        return min((time for time in times if time > now), default=None)

    def last_event(self) -> float:
        blocks = [*self.script.blocks, *self.script.errors]
        return max([self.started + at for at, _ in blocks] + [self.ends()])

    def state(self, now: float) -> str:
        if not self.over(now):
            return "running"
        if self.cancelled is not None and self.cancelled < self.started + self.script.ends:
            return "cancelled"
        return self.script.state

    def message(self, now: float) -> dict[str, Any]:
        over = self.over(now)
        return {
            "command_id": self.id,
            "sandbox_id": self.sandbox_id,
            "state": self.state(now),
            "exit_code": self.script.exit_code if over else None,
            "timed_out": over and self.script.state == "timed_out",
            "reason": self.script.reason if over else None,
            "kind": self.kind,
            "command": self.command[:256],
            "metadata": self.metadata,
            "timeout": self.timeout,
            "streams": "apart" if self.apart or self.kind == "exec" else "merged",
            "submitted_at": START,
            "started_at": START,
            "finished_at": START if over else None,
            "fenced": True,
        }


class ProblemAnswer(Exception):
    def __init__(self, status: int, code: str, detail: str = "no", **more: Any) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.more = status, code, detail, more


def problem(status: int, code: str, detail: str = "no", *, headers: Any = (), **more: Any) -> Answer:
    body = {
        "type": f"https://oncebox.example/problems/{code.lower()}",
        "title": code,
        "status": status,
        "detail": detail,
        "code": code,
        "retryable": status in (429, 502, 503),
        **more,
    }
    return Answer(
        status,
        {"content-type": "application/problem+json", **dict(headers)},
        json.dumps(body).encode(),
    )


def answer(status: int, body: Any, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(
        status, {"content-type": "application/json", **named}, b"" if body is None else json.dumps(body).encode()
    )


QUERY = {"cursor", "limit", "wait", "timeout", "encoding", "full", "stream"}
SANDBOX = {
    "image",
    "entrypoint",
    "env",
    "metadata",
    "resources",
    "timeout",
    "workspace_owner",
    "wait_ready",
}
COMMAND = {"sandbox_id", "command", "argv", "stdin", "stdin_encoding", "stdin_path", "user", "timeout", "cwd", "env"}
SUBMIT = COMMAND | {"metadata", "stderr"}
EXEC = COMMAND | {"encoding"}


class FakeService:
    """``scripts`` says what each command does; ``executions`` counts how often each ran, by sandbox and key."""

    def __init__(self, scripts: dict[str, Script], *, page: int = 2) -> None:
        self.scripts = scripts
        self.page = page
        self.jobs: dict[str, FakeJob] = {}
        self.sandboxes: dict[str, dict[str, Any]] = {}
        self.deleted: set[str] = set()
        self.keys: dict[tuple[str, str, str], tuple[Any, str]] = {}
        self.executions: dict[tuple[str, str], int] = {}
        self.honours_wait = True
        self.knows = set(QUERY)
        self.logs_fail: Callable[[FakeJob], bool] = lambda job: False
        self.log_lost: Callable[[FakeJob], bool] = lambda job: False
        """The engine has lost its place in the log: a read from the start is a snapshot, another one fails."""

    # The door

    def handle(self, method: str, target: str, headers: dict[str, str], body: bytes | None, now: float) -> Answer:
        """The answer, at once. ``waits_until`` says how long a real one would have waited first."""
        lower = {name.lower(): value for name, value in headers.items()}
        parts = urlsplit(target)
        query = parse_qsl(parts.query, keep_blank_values=True)
        try:
            made = self._route(method, unquote(parts.path), query, lower, body, now)
        except ProblemAnswer as no:
            made = problem(no.status, no.code, no.detail, **no.more)
        named = {"x-request-id": lower.get("x-request-id", "made-up"), **made.headers}
        if method == "POST" and "idempotency-key" in lower:
            named["idempotency-key"] = lower["idempotency-key"]
        return Answer(made.status, named, made.body)

    def waits_until(self, method: str, target: str, now: float) -> float:
        """When a long poll would be answered."""
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query))
        match = re.fullmatch(r"/v1/exec-jobs/([^/]+)", unquote(parts.path))
        if method != "GET" or not match or "wait" not in query or not self.honours_wait:
            return now
        job = self.jobs.get(match[1])
        cursor = query.get("cursor")
        stream = query.get("stream")
        if job is None or cursor is None or not re.fullmatch(r"c[0-9]+\.[a-z_]+(\.std(out|err))?", cursor):
            return now
        place, seen = self._cursor(cursor, stream)
        end = now + float(query["wait"])
        while now < end:
            if seen != job.state(now) or place != len(job.written(now, stream)):
                return now
            event = job.next_event(now, stream)
            if event is None:
                return now if job.over(now) else end
            now = min(event, end)
        return now

    def _route(
        self, method: str, path: str, query: list[tuple[str, str]], headers: dict[str, str], body: Any, now: float
    ) -> Answer:
        parts = [part for part in path.split("/") if part]
        sent: dict[str, Any] = {}
        if method == "POST":
            assert headers.get("idempotency-key"), "a POST without a key"
            assert headers.get("content-type") == "application/json"
            sent = json.loads(body)
        match (method, *parts):
            case ("POST", "v1", "sandboxes"):
                return self._create(sent, headers)
            case ("GET", "v1", "sandboxes"):
                return self._list(list(self.sandboxes.values()), query, {"metadata", "state"})
            case (_, "v1", "sandboxes", sandbox_id, *verb):
                return self._sandbox(method, sandbox_id, verb, sent)
            case ("POST", "v1", "exec-jobs"):
                return self._submit(sent, headers, now)
            case ("POST", "v1", "exec"):
                return self._exec(sent, headers, now)
            case ("GET", "v1", "exec-jobs"):
                jobs = [job.message(now) for job in reversed(self.jobs.values())]
                return self._list(jobs, query, {"metadata", "state", "sandbox_id", "kind", "q"})
            case ("GET", "v1", "exec-jobs", command_id):
                return self._read(self._job(command_id), query, now)
            case ("DELETE", "v1", "exec-jobs", command_id):
                job = self._job(command_id)
                if not job.over(now):
                    job.cancelled = now
                return answer(202, job.message(now))
        raise ProblemAnswer(404, "NOT_FOUND", path)

    # Sandboxes

    def _fields(self, sent: dict[str, Any], known: set[str]) -> None:
        if strange := set(sent) - known:
            name = min(strange)
            raise ProblemAnswer(
                422, "INVALID_REQUEST", f"{name}: unknown", errors=[{"field": name, "message": "unknown"}]
            )

    def _once(self, kind: str, scope: str, key: str, meaning: Any, make: Callable[[], str]) -> tuple[str, bool]:
        known = self.keys.get((kind, scope, key))
        if known is None:
            made = make()
            self.keys[kind, scope, key] = (meaning, made)
            return made, False
        if known[0] != meaning:
            raise ProblemAnswer(422, "IDEMPOTENCY_KEY_REUSED", "another request")
        return known[1], True

    def _create(self, sent: dict[str, Any], headers: dict[str, str]) -> Answer:
        self._fields(sent, SANDBOX)
        meaning = {name: value for name, value in sent.items() if name != "wait_ready"}

        def make() -> str:
            name = f"sb-{len(self.sandboxes)}"
            self.sandboxes[name] = {
                "sandbox_id": name,
                "state": "running",
                "reason": None,
                "ready": True,
                "workspace_owner": sent.get("workspace_owner"),
                "image": sent.get("image", "python:3.12"),
                "resources": sent.get("resources"),
                "metadata": sent.get("metadata", {}),
                "created_at": START,
                "expires_at": START,
            }
            return name

        owner = sent.get("workspace_owner") or json.dumps(meaning, sort_keys=True)
        name, replayed = self._once("sandbox", owner, headers["idempotency-key"], meaning, make)
        more = {"idempotent_replayed": "true"} if replayed else {}
        return answer(201, self.sandboxes[name], location=f"/v1/sandboxes/{name}", **more)

    def _sandbox(self, method: str, name: str, verb: list[str], sent: dict[str, Any]) -> Answer:
        if method == "DELETE" and not verb and (name in self.sandboxes or name in self.deleted):
            self.sandboxes.pop(name, None)
            self.deleted.add(name)
            return answer(204, None)
        if name not in self.sandboxes:
            raise ProblemAnswer(404, "SANDBOX_NOT_FOUND", name, sandbox_id=name)
        match (method, *verb):
            case ("GET",):
                return answer(200, self.sandboxes[name])
            case ("POST", "renew"):
                self._fields(sent, {"timeout"})
                self.sandboxes[name]["expires_at"] = f"renewed for {sent['timeout']}"
                return answer(200, self.sandboxes[name])
            case ("POST", "pause" | "resume"):
                self._fields(sent, set())
                self.sandboxes[name]["state"] = "paused" if verb == ["pause"] else "running"
                return answer(202, self.sandboxes[name])
        raise ProblemAnswer(405, "METHOD_NOT_ALLOWED", name)

    # Jobs

    def _start(self, kind: str, sent: dict[str, Any], headers: dict[str, str], now: float) -> tuple[FakeJob, bool]:
        sandbox_id, key = sent["sandbox_id"], headers["idempotency-key"]
        if sandbox_id not in self.sandboxes:
            raise ProblemAnswer(404, "SANDBOX_NOT_FOUND", sandbox_id, sandbox_id=sandbox_id)

        command = sent["command"] if sent.get("argv") is None else " ".join(sent["argv"])

        def make() -> str:
            name = f"cmd_{len(self.jobs)}"
            self.executions[sandbox_id, key] = self.executions.get((sandbox_id, key), 0) + 1
            self.jobs[name] = FakeJob(
                name,
                sandbox_id,
                command,
                self.scripts.get(command, Script()),
                now,
                sent.get("timeout", 3600),
                kind,
                sent.get("metadata", {}),
                apart=sent.get("stderr") == "apart",
            )
            return name

        name, replayed = self._once(kind, sandbox_id, key, sent, make)
        return self.jobs[name], replayed

    def _submit(self, sent: dict[str, Any], headers: dict[str, str], now: float) -> Answer:
        self._fields(sent, SUBMIT)
        job, replayed = self._start("job", sent, headers, now)
        more = {"idempotent_replayed": "true"} if replayed else {}
        return answer(202, job.message(now), location=f"/v1/exec-jobs/{job.id}", **more)

    def _exec(self, sent: dict[str, Any], headers: dict[str, str], now: float) -> Answer:
        self._fields(sent, EXEC)
        job, replayed = self._start("exec", sent, headers, now)
        more = {"idempotent_replayed": "true"} if replayed else {}
        body = {
            "command_id": job.id,
            "exit_code": job.script.exit_code,
            "timed_out": job.script.state == "timed_out",
            "stdout": job.script.output.decode("utf-8", "replace"),
            "stderr": "",
            "truncated": False,
            "duration": job.script.ends,
        }
        return answer(200, body, **more)

    def _job(self, command_id: str) -> FakeJob:
        job = self.jobs.get(command_id)
        if job is None:
            raise ProblemAnswer(404, "JOB_NOT_FOUND", command_id, command_id=command_id)
        return job

    def _cursor(self, text: str, stream: str | None) -> tuple[int, str]:
        match = re.fullmatch(r"c([0-9]+)\.([a-z_]+)(?:\.(stdout|stderr))?", text)
        if not match or match[3] != stream:
            errors = [{"field": "cursor", "message": "is no cursor that this service made"}]
            raise ProblemAnswer(422, "INVALID_REQUEST", "cursor", errors=errors)
        return int(match[1]), match[2]

    def _read(self, job: FakeJob, query: list[tuple[str, str]], now: float) -> Answer:
        self._fields(dict(query), self.knows)
        asked = dict(query)
        if "timeout" in asked:
            assert asked["timeout"] == str(job.timeout)
        message = job.message(now)
        encoding = asked.get("encoding", "utf8")
        if job.kind == "exec":
            return answer(200, {**message, **self._exec_output(job, encoding, now)})
        stream = asked.get("stream")
        if (stream in ("stdout", "stderr")) is not job.apart:
            errors = [{"field": "stream", "message": "is needed" if job.apart else "can't be chosen"}]
            raise ProblemAnswer(422, "INVALID_REQUEST", "stream", errors=errors)
        marked = "" if stream is None else f".{stream}"
        place = self._cursor(asked["cursor"], stream)[0] if "cursor" in asked else 0
        log_lost = self.log_lost(job)
        if self.logs_fail(job) or (log_lost and place):
            extra = {"logs_ok": False, "cursor": asked.get("cursor"), "output": "", "encoding": encoding}
            if extra["cursor"] is None:
                extra["cursor"] = f"c0.{message['state']}{marked}"
            return answer(200, {**message, **extra})
        written = job.written(now, stream)
        limit = min(int(asked.get("limit", BLOCK)), BLOCK)
        chunk = written[place : place + limit]
        if encoding == "utf8":
            text, chunk = _whole_characters(chunk, final=job.over(now) and place + len(chunk) == len(written))
        else:
            text = base64.b64encode(chunk).decode()
        end = place + len(chunk)
        nothing_left = job.over(now) and end == len(written) and job.next_event(now, stream) is None
        complete = nothing_left and (stream in job.drained or now - job.last_event() >= CLOSES)
        job.drained |= {stream} if nothing_left else set()
        return answer(
            200,
            {
                **message,
                "output": text,
                "encoding": encoding,
                "cursor": None if complete else f"c{end}.{message['state']}{marked}",
                "replace": log_lost,
                "logs_ok": True,
                "output_complete": complete,
                "more": bool(chunk) and end < len(written),
                "skipped_bytes": 0,
            },
        )

    def _exec_output(self, job: FakeJob, encoding: str, now: float) -> dict[str, Any]:
        data = job.script.output if job.over(now) else b""
        text = data.decode("utf-8", "replace") if encoding == "utf8" else base64.b64encode(data).decode()
        return {
            "stdout": text,
            "stderr": "",
            "encoding": encoding,
            "truncated": False,
            "cursor": None if job.over(now) else f"c0.{job.state(now)}",
            "logs_ok": True,
            "output_complete": job.over(now),
            "more": False,
        }

    # Lists

    def _list(self, items: list[dict[str, Any]], query: list[tuple[str, str]], known: set[str]) -> Answer:
        self._fields(dict(query), known | {"page_size", "page_token"})
        states = [value for name, value in query if name == "state"]
        labels = [value.split("=", 1) for name, value in query if name == "metadata"]
        asked = dict(query)
        found = [
            item
            for item in items
            if (not states or item["state"] in states)
            and all(item["metadata"].get(name) == value for name, value in labels)
            and asked.get("sandbox_id", item["sandbox_id"]) == item["sandbox_id"]
            and asked.get("kind", item.get("kind")) == item.get("kind")
            and asked.get("q", "").casefold() in " ".join(map(str, item.values())).casefold()
        ]
        first = int(asked.get("page_token", 0))
        size = min(int(asked.get("page_size", self.page)), self.page)
        rest = first + size < len(found)
        page = {"items": found[first : first + size], "next_page_token": str(first + size) if rest else None}
        return answer(200, page)


def _whole_characters(chunk: bytes, *, final: bool) -> tuple[str, bytes]:
    """The characters that are whole in ``chunk``, and their bytes."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(chunk, final)
    held = decoder.getstate()[0]
    return text, chunk[: len(chunk) - len(held)]
