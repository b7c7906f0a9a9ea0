"""Each operation of the API as a flow: what is sent, and what its answer becomes."""

# ruff: noqa: TID252
from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from ..errors import InvalidIdempotencyKey, InvalidRequest, OnceboxError, SandboxNotFound
from ..messages import MAX_EXEC_TIMEOUT, ExecResult, Job, JobPage, Resources, Sandbox, SandboxPage, Stream
from .answers import Fault, decoded, fault_of, unreadable
from .arguments import bounded, identifier, labels, number, plain, printable, text
from .results import JobRead
from .rules import Deadline, Terms, Tries, ask, call
from .steps import Answer, Flow, Request

log = logging.getLogger("oncebox")

M = TypeVar("M", bound=msgspec.Struct)

DEFAULT_WAIT_READY = 30.0
"""Seconds that the service waits for a new sandbox to be ready, unless told otherwise."""
MAX_WAIT_READY = 120.0
"""Seconds that it waits at most."""
DEFAULT_EXEC_TIMEOUT = 60.0
"""Seconds: the service's own default for an exec."""
EXEC_PATIENCE = 60.0
"""Seconds of silence after which an exec is asked for again, with its key, to wait for the same result."""
HURRY = 30.0
"""Seconds for each request that cleans up behind an error or an interrupt."""
STATUS_LIMIT = 1024
"""Bytes of output that come along with a status."""


@dataclass(frozen=True, slots=True)
class Made(Generic[M]):
    """What a POST made, or had made before."""

    message: M
    idempotency_key: str
    replayed: bool
    """Not made by this very request, says the service: by an earlier try, perhaps one of ours."""


class Calls:
    """The operations. One for each client; holds no connection."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms

    # Sandboxes

    def create_sandbox(
        self, body: Mapping[str, Any], *, wait_ready: int | None, key: str | None
    ) -> Flow[Made[Sandbox]]:
        """``POST /v1/sandboxes``."""
        waits = bounded(wait_ready, DEFAULT_WAIT_READY, MAX_WAIT_READY)
        return self._make("/v1/sandboxes", {**body, "wait_ready": wait_ready}, Sandbox, key=key, patience=waits)

    def uncreate_sandbox(self, body: Mapping[str, Any], *, key: str) -> Flow[None]:
        """Deletes the sandbox that ``create_sandbox`` made, or may have made, under a key that nobody else knows."""
        deadline = Deadline(self.terms, HURRY)
        try:
            made = yield from self._make(
                "/v1/sandboxes", {**body, "wait_ready": 0}, Sandbox, key=key, deadline=deadline
            )
            yield from self.delete_sandbox(made.message.sandbox_id, seconds=HURRY)
        except SandboxNotFound:
            pass
        except OnceboxError as error:
            if error.retryable:
                log.warning("a sandbox may be left over until its timeout (Idempotency-Key %s): %s", key, error)

    def remove_sandbox(self, sandbox_id: str) -> Flow[None]:
        """Deletes a sandbox in a hurry; failures are logged."""
        try:
            yield from self.delete_sandbox(sandbox_id, seconds=HURRY)
        except SandboxNotFound:
            pass
        except OnceboxError as error:
            log.warning("sandbox %s could not be deleted: %s", printable(sandbox_id), error)

    def sandbox(self, sandbox_id: str) -> Flow[Sandbox]:
        """``GET /v1/sandboxes/{id}``."""
        return call(self.terms, self._get(sandbox_path(sandbox_id)), _reader(sandbox_id, Sandbox, "sandbox_id"))

    def sandboxes(
        self, *, metadata: Mapping[str, str] | None, states: list[str], page_size: int | None, token: str | None
    ) -> Flow[SandboxPage]:
        """``GET /v1/sandboxes``, one page."""
        query = _listing({}, metadata, states, page_size, token)
        return call(self.terms, self._get("/v1/sandboxes", query), lambda answer: decoded(answer, SandboxPage))

    def renew(self, sandbox_id: str, timeout: int) -> Flow[Sandbox]:
        """``POST /v1/sandboxes/{id}/renew``."""
        return self._act(sandbox_id, "renew", {"timeout": timeout})

    def pause(self, sandbox_id: str) -> Flow[Sandbox]:
        """``POST /v1/sandboxes/{id}/pause``."""
        return self._act(sandbox_id, "pause", {})

    def resume(self, sandbox_id: str) -> Flow[Sandbox]:
        """``POST /v1/sandboxes/{id}/resume``."""
        return self._act(sandbox_id, "resume", {})

    def _act(self, sandbox_id: str, verb: str, body: Mapping[str, Any]) -> Flow[Sandbox]:
        # Idempotent by nature; the key is there so that no hop takes it for a request that must not be
        # repeated.
        request = self._post(f"{sandbox_path(sandbox_id)}/{verb}", body, key=self.terms.new_id())
        return call(self.terms, request, _reader(sandbox_id, Sandbox, "sandbox_id"))

    def delete_sandbox(self, sandbox_id: str, *, seconds: float | None = None) -> Flow[None]:
        """``DELETE /v1/sandboxes/{id}``, within ``seconds`` or the client's own deadline."""
        terms = self.terms
        deadline = Deadline(terms, terms.deadline if seconds is None else seconds)
        request = Request("DELETE", sandbox_path(sandbox_id), terms.timeout)
        tries = Tries(terms, deadline, what=f"DELETE {request.path}")
        while True:
            try:
                answer = yield from ask(terms, request, deadline)
                fault = fault_of(answer, of_job=False, now=terms.wall())
                if fault is None and answer.status == 204:
                    return
                fault = fault or Fault(unreadable(answer, f"HTTP {answer.status} to a DELETE"), transient=True)
            except Fault as caught:
                fault = caught
            if tries.failed and isinstance(fault.error, SandboxNotFound):
                return  # an earlier try may have arrived
            yield from tries.again(fault)

    # Commands

    def submit(self, body: Mapping[str, Any], *, key: str | None) -> Flow[Made[Job]]:
        """``POST /v1/exec-jobs``."""
        identifier(body["sandbox_id"], "sandbox_id")
        return self._make("/v1/exec-jobs", body, Job, key=key)

    def exec(self, body: Mapping[str, Any], *, key: str | None) -> Flow[Made[ExecResult]]:
        """``POST /v1/exec``."""
        identifier(body["sandbox_id"], "sandbox_id")
        timeout = bounded(body.get("timeout"), DEFAULT_EXEC_TIMEOUT, MAX_EXEC_TIMEOUT)
        return self._make("/v1/exec", body, ExecResult, key=key, patience=timeout)

    def status(self, command_id: str, *, timeout: int | None, apart: bool) -> Flow[JobRead]:
        """``GET /v1/exec-jobs/{command_id}``, for the state alone. ``apart``: its streams are known to be so."""
        query = {"limit": str(STATUS_LIMIT)}
        if timeout is not None and "timeout" not in self.terms.unsupported:
            query["timeout"] = str(timeout)
        read = _reader(command_id, JobRead, "command_id")
        if not apart:
            try:
                request = self._get(job_path(command_id), list(query.items()))
                return (yield from call(self.terms, request, read, of_job=True))
            except InvalidRequest as error:
                if not wants_stream(error):
                    raise
        request = self._get(job_path(command_id), [*query.items(), ("stream", "stdout")])
        return (yield from call(self.terms, request, read, of_job=True))

    def part(
        self, command_id: str, *, stream: Stream | None, cursor: str | None, limit: int | None, wait: float
    ) -> Flow[JobRead]:
        """``GET /v1/exec-jobs/{command_id}``, for a part of the output."""
        query: dict[str, str] = {} if stream is None else {"stream": text(stream, "stream")}
        if cursor is not None:
            query["cursor"] = text(cursor, "cursor")
        if limit is not None:
            query["limit"] = str(number(limit, "limit"))
        if wait:
            query["wait"] = str(number(wait, "wait"))
        request = self._get(job_path(command_id), list(query.items()))
        request = replace(request, read_timeout=request.read_timeout + wait)
        return call(self.terms, request, _reader(command_id, JobRead, "command_id"), of_job=True)

    def cancel(self, command_id: str) -> Flow[Job]:
        """``DELETE /v1/exec-jobs/{command_id}``."""
        request = Request("DELETE", job_path(command_id), self.terms.timeout)
        return call(self.terms, request, _reader(command_id, Job, "command_id"), of_job=True)

    def jobs(
        self,
        of: Mapping[str, str | None],
        *,
        metadata: Mapping[str, str] | None,
        states: list[str],
        page_size: int | None,
        token: str | None,
    ) -> Flow[JobPage]:
        """``GET /v1/exec-jobs``, one page."""
        query = _listing(of, metadata, states, page_size, token)
        return call(self.terms, self._get("/v1/exec-jobs", query), lambda answer: decoded(answer, JobPage))

    # Requests

    def _get(self, path: str, query: Iterable[tuple[str, str]] = ()) -> Request:
        encoded = urlencode(list(query))
        return Request("GET", f"{path}?{encoded}" if encoded else path, self.terms.timeout)

    def _post(self, path: str, body: Mapping[str, Any], *, key: str, patience: float = 0.0) -> Request:
        sent = {name: plain(value, name) for name, value in body.items() if value is not None}
        return Request(
            "POST",
            path,
            self.terms.timeout + min(patience, EXEC_PATIENCE if path == "/v1/exec" else patience),
            headers={"Idempotency-Key": key, "Content-Type": "application/json"},
            body=msgspec.json.encode(sent),
        )

    def _make(
        self,
        path: str,
        body: Mapping[str, Any],
        kind: type[M],
        *,
        key: str | None,
        patience: float = 0.0,
        deadline: Deadline | None = None,
    ) -> Flow[Made[M]]:
        key = checked_key(key) if key is not None else self.terms.new_id()

        def made(answer: Answer) -> Made[M]:
            echoed = answer.headers.get("idempotency-key", key).strip('"')
            if echoed != key.strip('"'):
                raise Fault(unreadable(answer, "the answer belongs to another Idempotency-Key"), transient=True)
            replayed = answer.headers.get("idempotent-replayed", "").lower() == "true"
            return Made(decoded(answer, kind), key, replayed)

        request = self._post(path, body, key=key, patience=patience)
        return _naming(key, call(self.terms, request, made, deadline=deadline, more_time=patience))


def _naming(key: str, flow: Flow[Made[M]]) -> Flow[Made[M]]:
    try:
        return (yield from flow)
    except OnceboxError as error:
        error.idempotency_key = key
        raise


def wants_stream(error: InvalidRequest) -> bool:
    """The job's streams are apart, and none was named."""
    return any(item.field == "stream" for item in error.errors)


def sandbox_path(sandbox_id: str) -> str:
    """The path of a sandbox.

    Raises:
        InvalidRequest: ``sandbox_id`` can't be an id.
    """
    return f"/v1/sandboxes/{_segment(sandbox_id, 'sandbox_id')}"


def job_path(command_id: str) -> str:
    """The path of a job.

    Raises:
        InvalidRequest: ``command_id`` can't be an id.
    """
    return f"/v1/exec-jobs/{_segment(command_id, 'command_id')}"


def _segment(value: str, field: str) -> str:
    quoted = quote(identifier(value, field), safe="")
    # Hops, and the libraries below, take these two for steps in the path.
    return quoted.replace(".", "%2E") if quoted in (".", "..") else quoted


def _reader(id: str, kind: type[M], field: str) -> Callable[[Answer], M]:
    """Reads an answer that must be about ``id``."""

    def read(answer: Answer) -> M:
        message = decoded(answer, kind)
        if (about := getattr(message, field)) != id:
            raise Fault(unreadable(answer, f"the answer is about {about}"), transient=True)
        return message

    return read


def _listing(
    first: Mapping[str, str | None],
    metadata: Mapping[str, str] | None,
    states: list[str],
    page_size: int | None,
    token: str | None,
) -> list[tuple[str, str]]:
    query = [(name, identifier(value, name)) for name, value in first.items() if value is not None]
    query += [("metadata", label) for label in labels(metadata or {}, "metadata")]
    query += [("state", state) for state in states]
    if page_size is not None:
        query.append(("page_size", str(number(page_size, "page_size"))))
    if token is not None:
        query.append(("page_token", token))
    return query


def checked_key(key: Any) -> str:
    """``key``, if it can be an Idempotency-Key.

    Raises:
        InvalidIdempotencyKey: it is not 1 to 255 visible ASCII characters.
    """
    if not isinstance(key, str) or not re.fullmatch(r"[!-~]{1,255}", key):
        raise InvalidIdempotencyKey(f"not 1 to 255 visible ASCII characters: {key!r}")
    return key


def plain_resources(resources: Resources | Mapping[str, str] | None) -> dict[str, str] | None:
    """``resources`` as they are sent."""
    if resources is None:
        return None
    if isinstance(resources, Resources):
        both = {"cpu": resources.cpu, "memory": resources.memory}
        return {name: value for name, value in both.items() if value is not None}
    return dict(resources)
