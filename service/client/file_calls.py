"""The operations on one sandbox's files as flows."""

# ruff: noqa: TID252
from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import msgspec

from ..errors import OnceboxError
from ..messages import File, FilePage, Job, Unpacked
from .answers import Fault, decoded, fault_of, unreadable
from .arguments import number, printable, text
from .calls import HURRY, sandbox_path
from .rules import Deadline, Terms, Tries, ask, call
from .steps import Answer, Flow, Request
from .transfers import Content, Receiver

log = logging.getLogger("oncebox")

ANY_TYPE = {"Content-Type": "application/octet-stream"}
TAR = {"Content-Type": "application/x-tar"}


class FilePart(msgspec.Struct, frozen=True):
    """Some bytes of a file, and how many it has."""

    data: bytes
    size: int


class FileCalls:
    """Holds no connection. ``user``: with whose rights, see ``Sandbox.files``."""

    def __init__(self, terms: Terms, sandbox_id: str) -> None:
        self._terms = terms
        self._sandbox_id = sandbox_id

    def write(
        self, path: str, content: Content, *, mode: str | None, user: str | None, conditions: Mapping[str, str]
    ) -> Flow[File]:
        """``PUT .../files``."""
        query = {"path": path, "mode": mode, "user": user}
        headers = {**ANY_TYPE, **conditions}
        return self._call(self._request("PUT", "files", query, headers=headers, body=content), File)

    def read(self, path: str, receiver: Receiver, *, user: str | None) -> Flow[int]:
        """``GET .../files``; after a drop from where it stood. Returns how many bytes came."""
        return self._receive(self._request("GET", "files", {"path": path, "user": user}, receiver=receiver), receiver)

    def part(self, path: str, *, offset: int, length: int, user: str | None) -> Flow[FilePart]:
        """``GET .../files``, some of its bytes."""
        headers = {"Range": f"bytes={number(offset, 'offset')}-{number(offset + length - 1, 'length')}"}
        request = self._request("GET", "files", {"path": path, "user": user}, headers=headers)

        def read(answer: Answer) -> FilePart:
            if answer.status == 200:  # an empty file has no range
                return FilePart(answer.body[offset : offset + length], len(answer.body))
            size = answer.headers.get("content-range", "").rpartition("/")[2]
            if not size.isdecimal():
                raise Fault(unreadable(answer, "a part of a file that does not say which"), transient=True)
            return FilePart(answer.body, int(size))

        return call(self._terms, request, read, of_job=True)

    def pack(self, path: str, receiver: Receiver, *, user: str | None) -> Flow[int]:
        """``GET .../archive``; after a drop from the start."""
        return self._receive(self._request("GET", "archive", {"path": path, "user": user}, receiver=receiver), receiver)

    def unpack(self, path: str, content: Content, *, user: str | None) -> Flow[Unpacked | Job]:
        """``PUT .../archive``: what was unpacked, or the job that does it."""
        request = self._request("PUT", "archive", {"path": path, "user": user}, headers=self._keyed(TAR), body=content)

        def read(answer: Answer) -> Unpacked | Job:
            return decoded(answer, Job) if answer.status == 202 else decoded(answer, Unpacked)

        return call(self._terms, request, read, of_job=True)

    def info(self, path: str, *, user: str | None) -> Flow[File]:
        """``GET .../files/info``."""
        return self._call(self._request("GET", "files/info", {"path": path, "user": user}), File)

    def list(self, path: str, *, user: str | None, page_size: int | None, token: str | None) -> Flow[FilePage]:
        """``GET .../directories``, one page."""
        size = None if page_size is None else str(number(page_size, "page_size"))
        query = {"path": path, "user": user, "page_size": size, "page_token": token}
        return self._call(self._request("GET", "directories", query), FilePage)

    def make_directory(self, path: str, *, mode: str | None, user: str | None) -> Flow[File]:
        """``POST .../directories``."""
        body = {"path": text(path, "path")} | ({} if mode is None else {"mode": text(mode, "mode")})
        headers = self._keyed({"Content-Type": "application/json"})
        request = self._request("POST", "directories", {"user": user}, headers=headers, body=msgspec.json.encode(body))
        return self._call(request, File)

    def discard(self, path: str) -> Flow[None]:
        """Removes a file that nobody needs any more, in a hurry; what fails is logged."""
        try:
            yield from self.remove(path, recursive=False, user=None, deadline=Deadline(self._terms, HURRY))
        except OnceboxError as error:
            log.warning("%s in sandbox %s could not be removed: %s", path, printable(self._sandbox_id), error)

    def remove(self, path: str, *, recursive: bool, user: str | None, deadline: Deadline | None = None) -> Flow[None]:
        """``DELETE .../files``."""
        query = {"path": path, "user": user, "recursive": "true" if recursive else None}

        def read(answer: Answer) -> None:
            if answer.status != 204:
                raise Fault(unreadable(answer, f"HTTP {answer.status} to a DELETE"), transient=True)

        return call(self._terms, self._request("DELETE", "files", query), read, of_job=True, deadline=deadline)

    def _call(self, request: Request, kind: Any) -> Flow[Any]:
        return call(self._terms, request, lambda answer: decoded(answer, kind), of_job=True)

    def _keyed(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {**headers, "Idempotency-Key": self._terms.new_id()}

    def _request(self, method: str, below: str, query: Mapping[str, str | None], **more: Any) -> Request:
        sent = {name: text(value, name) for name, value in query.items() if value is not None}
        path = f"{sandbox_path(self._sandbox_id)}/{below}"
        return Request(method, f"{path}?{urlencode(sent)}" if sent else path, self._terms.timeout, **more)

    def _receive(self, request: Request, receiver: Receiver) -> Flow[int]:
        """As ``call``; a try that brought something counts as a first one, with all of the client's deadline left."""
        terms, before = self._terms, 0
        tries, deadline = self._tries(request)
        while True:
            try:
                answer = yield from ask(terms, replace(request, headers=receiver.wanted()), deadline)
                fault = fault_of(answer, of_job=True, now=terms.wall())
                if fault is None:
                    return receiver.received
            except Fault as caught:
                fault = caught
            if receiver.received > before:
                before = receiver.received
                tries, deadline = self._tries(request)
            yield from tries.again(fault)

    def _tries(self, request: Request) -> tuple[Tries, Deadline]:
        deadline = Deadline(self._terms, self._terms.deadline)
        return Tries(self._terms, deadline, what=f"GET {request.path.partition('?')[0]}"), deadline
