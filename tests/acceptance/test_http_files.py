"""Files over HTTP: bytes in, the same bytes out, and every problem that there can be."""

from __future__ import annotations

import contextlib
import os
import random
import re
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import urllib3

from tests.acceptance.http_rig import Replica
from tests.support.processes import Spawner
from tests.support.waiting import PATIENCE

MAX_FILE = 64 * 1024 * 1024
NAMES = [
    "a b",
    "it's",
    'say "x"',
    "line\nend\n",
    "100%",
    "$X",
    "${HOME}",
    "~",
    "-rf",
    "*",
    "n" * 255,
    "ünïcode",
    "a\\b",
]


class Files:
    """The files of one sandbox."""

    def __init__(self, replica: Replica, sandbox_id: str) -> None:
        self.replica = replica
        self.sandbox_id = sandbox_id
        self.base = f"/v1/sandboxes/{sandbox_id}"

    def ask(
        self,
        method: str,
        below: str,
        body: bytes | Iterator[bytes] | None = None,
        *,
        headers: dict[str, str] | None = None,
        **query: str,
    ) -> urllib3.BaseHTTPResponse:
        target = f"{self.replica.url}{self.base}/{below}?{urlencode(query, quote_via=quote)}"
        return self.replica.http.request(method, target, body=body, headers=headers or {}, timeout=60)

    def put(self, path: str, body: bytes | Iterator[bytes], **more: Any) -> urllib3.BaseHTTPResponse:
        return self.ask("PUT", "files", body, path=path, **more)

    def get(self, path: str, **more: Any) -> urllib3.BaseHTTPResponse:
        return self.ask("GET", "files", path=path, **more)

    def remove(self, path: str, **more: Any) -> urllib3.BaseHTTPResponse:
        return self.ask("DELETE", "files", path=path, **more)

    def names(self, path: str = ".") -> list[str]:
        return [item["path"].rpartition("/")[2] for item in self.ask("GET", "directories", path=path).json()["items"]]


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    spawner = Spawner(tmp_path_factory.mktemp("files"))
    yield Replica(spawner, {"ONCEBOX_MAX_FILE": str(MAX_FILE)})
    spawner.kill_all()


@pytest.fixture
def files(replica: Replica) -> Files:
    return Files(replica, replica.sandbox())


@pytest.mark.parametrize("name", NAMES)
def test_what_was_put_under_any_name_comes_back(files: Files, name: str) -> None:
    data = bytes(range(256)) * 5
    answer = files.put(name, data)
    assert (answer.status, answer.json()["size"]) == (201, len(data)), answer.data
    assert files.put(name, data[::-1]).status == 200
    answer = files.get(name)
    assert (answer.status, answer.data) == (200, data[::-1])
    assert files.ask("GET", "files/info", path=name).json()["mode"] == "0644"
    assert files.remove(name).status == 204
    assert files.remove(name).status == 204
    assert files.get(name).json()["code"] == "FILE_NOT_FOUND"
    assert files.names() == []


@pytest.mark.parametrize("size", [0, 1, 8 * 1024 * 1024, 8 * 1024 * 1024 + 1, 40 * 1024 * 1024])
def test_files_of_any_size_with_a_length_or_chunked(files: Files, size: int) -> None:
    data = os.urandom(size)
    answer = files.put("deep/er/f", data)
    assert (answer.status, answer.headers.get("Connection")) == (201, None), "the connection goes on"
    assert files.get("deep/er/f").data == data
    chunks = (data[start : start + 100_000] for start in range(0, size, 100_000))
    assert files.put("chunked", chunks).json()["size"] == size
    assert files.get("chunked").data == data


def test_a_path_in_the_workspace_is_the_one_where_commands_start(files: Files) -> None:
    assert files.put("/workspace/there", b"x").json()["path"] == "/workspace/there"
    made = {"sandbox_id": files.sandbox_id, "command": "cat there; printf y >back"}
    assert files.replica.ask("POST", "/v1/exec", made).json()["stdout"] == "x"
    assert files.get("/workspace/back").data == b"y"
    assert files.names("/workspace") == ["back", "there"]


def test_the_head_says_what_the_file_is(files: Files) -> None:
    files.put("r\u00e9sum\u00e9 1.html", b"<script>alert(1)</script>")
    for method in ("GET", "HEAD"):
        answer = files.ask(method, "files", path="r\u00e9sum\u00e9 1.html")
        head = answer.headers
        assert head["Content-Length"] == "25"
        assert head["Content-Type"] == "application/octet-stream"
        assert head["X-Content-Type-Options"] == "nosniff"
        assert head["Cache-Control"] == "no-cache"
        assert head["Content-Disposition"] == (
            "attachment; filename=\"r_sum_ 1.html\"; filename*=UTF-8''r%C3%A9sum%C3%A9%201.html"
        )
        assert head["Last-Modified"].endswith("GMT")
        assert len(answer.data) == (25 if method == "GET" else 0)


def test_ranges_are_those_of_the_same_content(files: Files) -> None:
    tag = files.put("f", b"0123456789").headers["ETag"]
    answer = files.get("f", headers={"Range": "bytes=2-4"})
    assert (answer.status, answer.data, answer.headers["Content-Range"]) == (206, b"234", "bytes 2-4/10")
    assert answer.headers["ETag"] == tag
    assert files.get("f", headers={"Range": "bytes=-3"}).data == b"789"
    assert files.get("f", headers={"Range": "bytes=8-", "If-Range": tag}).data == b"89"
    answer = files.get("f", headers={"Range": "bytes=8-", "If-Range": '"other"'})
    assert (answer.status, answer.data) == (200, b"0123456789")
    answer = files.get("f", headers={"Range": "bytes=10-"})
    assert (answer.status, answer.json()["code"]) == (416, "RANGE_NOT_SATISFIABLE")
    assert answer.headers["Content-Range"] == "bytes */10"
    assert files.get("f", headers={"If-None-Match": tag}).status == 304
    files.put("f", b"9876543210")
    answer = files.get("f", headers={"Range": "bytes=8-", "If-Range": tag})
    assert (answer.status, answer.data) == (200, b"9876543210")


def test_a_put_only_in_place_of_what_was_seen(files: Files) -> None:
    assert files.put("f", b"1", headers={"If-None-Match": "*"}).status == 201
    answer = files.put("f", b"2", headers={"If-None-Match": "*"})
    assert (answer.status, answer.json()["code"]) == (412, "PRECONDITION_FAILED")
    tag = files.get("f").headers["ETag"]
    assert files.put("f", b"3", headers={"If-Match": f'"x", {tag}'}).status == 200
    assert files.put("f", b"4", headers={"If-Match": tag}).status == 412
    assert files.put("g", b"4", headers={"If-Match": "*"}).status == 412
    assert files.get("f").data == b"3"


@pytest.mark.parametrize(
    ("method", "below", "query", "status", "code"),
    [
        ("GET", "files", {"path": "d"}, 409, "IS_A_DIRECTORY"),
        ("PUT", "files", {"path": "d"}, 409, "IS_A_DIRECTORY"),
        ("GET", "files", {"path": "pipe"}, 409, "NOT_A_FILE"),
        ("PUT", "files", {"path": "pipe"}, 409, "NOT_A_FILE"),
        ("GET", "files", {"path": "/dev/zero"}, 409, "NOT_A_FILE"),
        ("GET", "files", {"path": "/proc/cpuinfo"}, 409, "NOT_A_FILE"),
        ("GET", "files", {"path": "nowhere"}, 404, "FILE_NOT_FOUND"),
        ("GET", "files", {"path": "circle"}, 404, "FILE_NOT_FOUND"),
        ("GET", "files", {"path": "d/f/g"}, 409, "NOT_A_DIRECTORY"),
        ("PUT", "files", {"path": "d/f/g"}, 409, "NOT_A_DIRECTORY"),
        ("GET", "directories", {"path": "d/f"}, 409, "NOT_A_DIRECTORY"),
        ("GET", "directories", {"path": "x"}, 404, "FILE_NOT_FOUND"),
        ("DELETE", "files", {"path": "d"}, 409, "DIRECTORY_NOT_EMPTY"),
        ("DELETE", "files", {"path": "/", "recursive": "true"}, 409, "DIRECTORY_NOT_EMPTY"),
        ("GET", "files", {"path": "p" * 256}, 422, "INVALID_REQUEST"),
        ("GET", "files", {"path": ""}, 422, "INVALID_REQUEST"),
        ("GET", "files", {"path": "a\0b"}, 422, "INVALID_REQUEST"),
        ("GET", "files", {}, 422, "INVALID_REQUEST"),
        ("GET", "files", {"path": "a", "pth": "b"}, 422, "INVALID_REQUEST"),
        ("PUT", "files", {"path": "a", "mode": "9"}, 422, "INVALID_REQUEST"),
        ("PUT", "files", {"path": "a", "user": "nobody-here"}, 422, "INVALID_REQUEST"),
        ("PUT", "files", {"path": ".oncebox-up-0/x"}, 422, "INVALID_REQUEST"),
    ],
)
def test_every_no_has_its_code(files: Files, method: str, below: str, query: Any, status: int, code: str) -> None:
    made = {
        "sandbox_id": files.sandbox_id,
        "command": "mkdir d; :>d/f; mkfifo pipe; ln -s gone nowhere; ln -s circle circle",
    }
    assert files.replica.ask("POST", "/v1/exec", made).json()["exit_code"] == 0
    answer = files.ask(method, below, b"x" if method == "PUT" else None, **query)
    assert (answer.status, answer.json()["code"]) == (status, code), answer.data


def test_directories_are_made_listed_in_pages_and_removed(files: Files) -> None:
    answer = files.replica.ask("POST", files.base + "/directories", {"path": "a/b", "mode": "0711"})
    assert (answer.status, answer.json()["mode"]) == (201, "0711")
    assert files.replica.ask("POST", files.base + "/directories", {"path": "a/b"}).status == 200
    for number in range(5):
        files.put(f"a/b/{number}", b"")
    seen: list[str] = []
    token = None
    while True:
        more: Any = {"page_token": token} if token else {}
        page = files.ask("GET", "directories", path="a/b", page_size="2", **more).json()
        seen += [item["path"].rpartition("/")[2] for item in page["items"]]
        token = page["next_page_token"]
        if token is None:
            break
    assert seen == ["0", "1", "2", "3", "4"]
    assert files.remove("a", recursive="true").status == 204
    assert files.names() == []


def test_a_file_over_the_limit_leaves_nothing(files: Files) -> None:
    answer = files.put("big", b"x" * (MAX_FILE + 1))
    assert (answer.status, answer.json()["code"]) == (413, "FILE_TOO_LARGE")
    chunks = (b"x" * 1_000_000 for _ in range(MAX_FILE // 1_000_000 + 2))
    with contextlib.suppress(urllib3.exceptions.HTTPError):  # it may be told so only by the end of its connection
        assert files.put("big", chunks).status == 413
    assert files.names() == []


def test_files_of_another_sandbox_are_not_there(files: Files, replica: Replica) -> None:
    other = Files(replica, "sbx-not-there")
    for method, below in (("GET", "files"), ("PUT", "files"), ("GET", "directories"), ("DELETE", "files")):
        answer = other.ask(method, below, b"" if method == "PUT" else None, path="x")
        assert (answer.status, answer.json()["code"]) == (404, "SANDBOX_NOT_FOUND")


# -- bounds


def peak(replica: Replica) -> int:
    """Bytes of memory that a replica had at the most, since it was asked to begin anew."""
    status = Path(f"/proc/{replica.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) * 1024  # type: ignore[index]


def test_large_files_take_little_of_a_replica(files: Files) -> None:
    """Several at once, and one whose reader is slow: what is added is a bound for each and not a file's size."""
    files.put("warm", b"x" * 1_000_000)
    files.get("warm")
    Path(f"/proc/{files.replica.process.pid}/clear_refs").write_text("5")
    before = peak(files.replica)
    size = 60 * 1_000_000
    assert files.put("large", (b"y" * 50_000 for _ in range(size // 50_000))).status == 201
    target = f"{files.replica.url}{files.base}/files?path=large"
    answer = files.replica.http.request("GET", target, preload_content=False, timeout=60)
    got = 0
    while chunk := answer.read(500_000):
        got += len(chunk)
        if got < 5_000_000:
            time.sleep(0.02)  # the replica could read on meanwhile
    assert got == size
    assert peak(files.replica) - before < 32 * 1024 * 1024


def test_connections_that_are_cut_while_they_send_leave_what_was_there(files: Files) -> None:
    """Closed or reset at any byte; each is answered by nobody."""
    files.put("f", b"old")
    host, port = files.replica.url.removeprefix("http://").split(":")
    dice = random.Random(7)
    body = b"new" * 100_000
    for number in range(30):
        head = (
            f"PUT {files.base}/files?path=f HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        )
        sent = (head + body)[: dice.randrange(len(head), len(head) + len(body))]
        with socket.create_connection((host, int(port)), PATIENCE) as connection:
            connection.sendall(sent)
            if number % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert files.get("f").data == b"old"
    assert files.names() == ["f"]
    assert files.put("f", b"newer").status == 200
    deadline = time.monotonic() + PATIENCE
    while (left := _hidden(files)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == 0


def _hidden(files: Files) -> int:
    made = {"sandbox_id": files.sandbox_id, "command": "ls -a | grep -c '^.oncebox-up-'"}
    return int(files.replica.ask("POST", "/v1/exec", made).json()["stdout"])


def test_a_sender_that_falls_silent_holds_nobody_up(files: Files) -> None:
    host, port = files.replica.url.removeprefix("http://").split(":")
    head = f"PUT {files.base}/files?path=slow HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n\r\nabc".encode()
    with socket.create_connection((host, int(port)), PATIENCE) as connection:
        connection.sendall(head)
        assert files.put("other", b"x").status == 201
        assert files.get("slow").status == 404
