"""A service of files over real sockets that cuts connections where it is told to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socketserver
import struct
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from socket import SO_LINGER, SOL_SOCKET
from urllib.parse import parse_qs, urlsplit


class FileServer(socketserver.ThreadingTCPServer):
    """``files``: their bytes. ``cuts``: after how many bytes of a body the next transfers break off; None: not."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.cuts: list[int | None] = []
        self.between: list[tuple[str, bytes]] = []
        """What becomes of a file at the next cut."""
        self.refuse: tuple[int, str] | None = None
        """A status and a code with which uploads are refused as soon as their head is there."""
        self.ranges: list[str | None] = []
        self.conditions: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FileServer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    @property
    def path_asked(self) -> str:
        return parse_qs(urlsplit(self.path).query)["path"][0]

    def do_PUT(self) -> None:
        if self.server.refuse is not None:
            status, code = self.server.refuse
            self.problem(status, code)
            self.close_connection = True
            return
        self.server.conditions.append(self.headers["If-Match"] or self.headers["If-None-Match"])
        length, cut = int(self.headers["Content-Length"]), self.next_cut()
        if cut is not None:
            self.rfile.read(min(cut, length))
            self.reset()
            return
        known, body = self.path_asked in self.server.files, self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return
        self.server.files[self.path_asked] = body
        self.message(200 if known else 201, self.file(length))

    def do_GET(self) -> None:
        data = self.server.files.get(self.path_asked)
        if data is None:
            self.problem(404, "FILE_NOT_FOUND")
            return
        etag, start = f'"{hashlib.sha256(data).hexdigest()}"', 0
        asked = self.headers["Range"]
        self.server.ranges.append(asked)
        if asked is not None and self.headers["If-Range"] == etag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
        self.send_response(206 if start else 200)
        self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        cut = self.next_cut()
        self.wfile.write(data[start:] if cut is None else data[start : start + cut])
        if cut is not None:
            for path, changed in self.server.between:
                self.server.files[path] = changed
            self.server.between = []
            self.reset(linger=True)

    def next_cut(self) -> int | None:
        return self.server.cuts.pop(0) if self.server.cuts else None

    def reset(self, *, linger: bool = False) -> None:
        """The end of the connection: what was sent arrives where it may ``linger``, else it is reset."""
        self.wfile.flush()
        if not linger:
            self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def file(self, size: int) -> dict[str, object]:
        return {
            "path": self.path_asked,
            "type": "file",
            "size": size,
            "mode": "0644",
            "modified_at": "2026-01-01T00:00:00.000Z",
        }

    def message(self, status: int, value: object, kind: str = "application/json") -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def problem(self, status: int, code: str) -> None:
        told = {"type": "x", "title": "x", "status": status, "detail": code, "code": code, "retryable": False}
        self.message(status, told, "application/problem+json")


@contextlib.contextmanager
def file_server() -> Iterator[FileServer]:
    server = FileServer()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
