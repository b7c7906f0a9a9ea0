"""The main job over HTTP, on a replica with nothing configured: create, submit, follow, exit code."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import httpx_sse
import msgspec
import pytest

from tests.acceptance.http_rig import Replica, lines_of, marked
from tests.support.processes import Spawner
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.acceptance

LOOP = "for i in 1 2 3; do echo $i; sleep 0.3; done; echo done >&2; exit 3"

WAITS = "until [ -e go ]; do sleep 0.05; done"
"""For a file that another command makes in the same directory."""


def go(replica: Replica, sandbox: str) -> None:
    """Let a command in this sandbox go on that waits."""
    assert replica.ask("POST", "/v1/exec", {"sandbox_id": sandbox, "command": "touch go"}).status == 200


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    spawn = Spawner(tmp_path_factory.mktemp("replica"))
    yield Replica(spawn)
    spawn.kill_all()


def test_a_job_runs_is_followed_and_gives_its_exit_code(replica: Replica) -> None:
    # Given a sandbox, when a command is submitted
    sandbox = replica.sandbox(metadata={"team": "a"})
    answer = replica.ask("POST", "/v1/exec-jobs", {"sandbox_id": sandbox, "command": LOOP}, Idempotency_Key="k1")
    assert answer.status == 202
    command_id = answer.json()["command_id"]
    assert answer.headers["Location"] == f"/v1/exec-jobs/{command_id}"
    assert answer.headers["Idempotency-Key"] == "k1"
    assert "Idempotent-Replayed" not in answer.headers

    # Then its output and exit code can be followed to the end
    job, output = replica.follow(command_id)
    assert output == b"1\n2\n3\ndone\n"
    assert (job["state"], job["exit_code"], job["timed_out"]) == ("exited", 3, False)
    assert job["output_complete"] is True

    # And a retry is the same job
    again = replica.ask("POST", "/exec-jobs", {"sandbox_id": sandbox, "command": LOOP}, Idempotency_Key='"k1"')
    assert (again.status, again.json()["command_id"]) == (202, command_id)
    assert again.headers["Idempotent-Replayed"] == "true"
    listed = replica.ask("GET", f"/v1/exec-jobs?sandbox_id={sandbox}").json()["items"]
    assert [item["command_id"] for item in listed] == [command_id]

    # And the same key with another command runs nothing
    other = replica.ask("POST", "/v1/exec-jobs", {"sandbox_id": sandbox, "command": "true"}, Idempotency_Key="k1")
    assert (other.status, other.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")


def test_output_comes_as_it_is_printed(replica: Replica) -> None:
    sandbox = replica.sandbox()
    command_id = replica.submit(sandbox, f"echo first; {WAITS}; echo second; exit 3")
    seen = ""
    for name, _, data in replica.events(command_id):
        if name == "output":
            seen += data["output"]
            if seen == "first\n":
                go(replica, sandbox)
        if name == "end":
            assert (data["state"], data["exit_code"]) == ("exited", 3)
            break
    assert seen == "first\nsecond\n"


def test_an_event_stream_resumes_where_it_broke_off_and_ends_for_good(replica: Replica) -> None:
    command_id = replica.submit(replica.sandbox(), LOOP)
    first, last_id = "", ""
    for name, id, data in replica.events(command_id):
        if name == "output":
            first, last_id = data["output"], id
            break
    rest, ended = "", ""
    for name, id, data in replica.events(command_id, Last_Event_ID=last_id):
        rest += data["output"] if name == "output" else ""
        ended = id if name == "end" else ""
    assert first + rest == "1\n2\n3\ndone\n"
    assert replica.ask("GET", f"/v1/exec-jobs/{command_id}/events", Last_Event_ID=ended).status == 204


def test_one_key_fifty_times_at_once_runs_once(replica: Replica) -> None:
    sandbox = replica.sandbox()
    with ThreadPoolExecutor(50) as pool:
        ids = set(pool.map(lambda _: replica.submit(sandbox, "echo x >> counter", key="once"), range(50)))
    assert len(ids) == 1
    replica.follow(ids.pop())
    counted = replica.ask("POST", "/v1/exec", {"sandbox_id": sandbox, "command": "cat counter"})
    assert counted.json()["stdout"] == "x\n"


def test_one_key_fifty_times_at_once_makes_one_sandbox(replica: Replica) -> None:
    def create(_: int) -> Any:
        return replica.ask("POST", "/v1/sandboxes", {"metadata": {"test": "once"}}, Idempotency_Key="once").json()[
            "sandbox_id"
        ]

    with ThreadPoolExecutor(50) as pool:
        assert len(set(pool.map(create, range(50)))) == 1
    assert len(replica.ask("GET", "/v1/sandboxes?metadata=test=once").json()["items"]) == 1


def test_raw_output_byte_for_byte_and_in_ranges(replica: Replica) -> None:
    command_id = replica.submit(replica.sandbox(), r"printf 'ab\377\000cd'; printf ef >&2")
    replica.follow(command_id)
    target = f"/v1/exec-jobs/{command_id}/output"
    whole = replica.ask("GET", target)
    assert (whole.status, whole.data) == (200, b"ab\xff\x00cdef")
    part = replica.ask("GET", target, Range="bytes=1-2")
    assert (part.status, part.data, part.headers["Content-Range"]) == (206, b"b\xff", "bytes 1-2/8")
    assert replica.ask("GET", target, Range="bytes=-2").data == b"ef"
    assert replica.ask("GET", target, Range="bytes=6-").data == b"ef"
    beyond = replica.ask("GET", target, Range="bytes=8-")
    assert (beyond.status, beyond.json()["code"]) == (416, "RANGE_NOT_SATISFIABLE")
    assert beyond.headers["Content-Range"] == "bytes */8"
    head = replica.ask("HEAD", target)
    assert (head.status, head.headers["Content-Length"], head.data) == (200, "8", b"")


def test_exec_gives_both_outputs_exactly(replica: Replica) -> None:
    sandbox = replica.sandbox()
    request = {"sandbox_id": sandbox, "command": r"printf 'a\r\nb'; printf c >&2; exit 4", "encoding": "utf8"}
    answer = replica.ask("POST", "/v1/exec", request, Idempotency_Key="k")
    assert answer.status == 200
    result = answer.json()
    assert (result["stdout"], result["stderr"], result["exit_code"]) == ("a\r\nb", "c", 4)
    again = replica.ask("POST", "/v1/exec", request, Idempotency_Key="k")
    assert again.json() == result
    assert again.headers["Idempotent-Replayed"] == "true"


def test_exec_streams_its_text(replica: Replica) -> None:
    sandbox = replica.sandbox()
    request = msgspec.json.encode({"sandbox_id": sandbox, "command": f"echo one; {WAITS}; echo two"})
    headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
    target = f"{replica.url}/v1/exec"
    answer = replica.http.request(
        "POST", target, body=request, headers=headers, preload_content=False, timeout=PATIENCE
    )
    names = []
    for line in lines_of(answer):
        names += [line.removeprefix("event: ")] if line.startswith("event: ") else []
        if "one" in line:
            go(replica, sandbox)
    assert names[0] == "start"
    assert names[-1] == "result"
    assert names.count("stdout") >= 2


def test_a_sandbox_is_shown_renewed_paused_resumed_and_deleted(replica: Replica) -> None:
    sandbox = replica.sandbox(metadata={"team": "paused"}, timeout=600)
    before = replica.ask("GET", f"/v1/sandboxes/{sandbox}").json()
    assert (before["state"], before["metadata"], before["ready"]) == ("running", {"team": "paused"}, True)
    assert replica.ask("GET", "/v1/sandboxes?metadata=team%3Dpaused").json()["items"][0]["sandbox_id"] == sandbox
    assert replica.ask("GET", "/v1/sandboxes?metadata=team%3Db").json()["items"] == []
    renewed = replica.ask("POST", f"/v1/sandboxes/{sandbox}/renew", {"timeout": 7200})
    assert renewed.json()["expires_at"] > before["expires_at"]
    assert replica.ask("POST", f"/v1/sandboxes/{sandbox}/pause").status == 202
    assert replica.ask("POST", f"/v1/sandboxes/{sandbox}/pause").status == 202
    assert replica.ask("POST", f"/v1/sandboxes/{sandbox}/resume").status == 202
    for _ in range(2):
        assert replica.ask("DELETE", f"/v1/sandboxes/{sandbox}").status == 204
    gone = replica.ask("GET", f"/v1/sandboxes/{sandbox}")
    assert (gone.status, gone.json()["code"]) == (404, "SANDBOX_NOT_FOUND")


def test_a_cancelled_job_ends_cancelled(replica: Replica) -> None:
    command_id = replica.submit(replica.sandbox(), "echo begun; sleep 600")
    for name, _, _ in replica.events(command_id):
        if name == "output":
            break
    assert replica.ask("DELETE", f"/v1/exec-jobs/{command_id}").status == 202
    job, output = replica.follow(command_id)
    assert (job["state"], output) == ("cancelled", b"begun\n")
    assert replica.ask("DELETE", f"/v1/exec-jobs/{command_id}").status == 202


def test_a_maintained_sse_client_understands_the_events(replica: Replica) -> None:
    command_id = replica.submit(replica.sandbox(), LOOP)
    target = f"{replica.url}/v1/exec-jobs/{command_id}/events"
    with httpx.Client(timeout=PATIENCE) as client, httpx_sse.connect_sse(client, "GET", target) as source:
        events = [(event.event, event.id, event.json()) for event in source.iter_sse()]
    assert "".join(data["output"] for name, _, data in events if name == "output") == "1\n2\n3\ndone\n"
    assert events[-1][0] == "end"
    assert all(id for _, id, _ in events)


@pytest.mark.parametrize("path", ["exec-jobs", "exec"])
def test_a_caller_who_leaves_stops_nothing_and_its_retry_gets_the_same(replica: Replica, path: str) -> None:
    sandbox = replica.sandbox()
    request = {"sandbox_id": sandbox, "command": "echo x >> counter; sleep 1; wc -l < counter"}
    body = msgspec.json.encode(marked(request))
    head = f"POST /v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Idempotency-Key: gone-{path}\r\nContent-Length: {len(body)}\r\n\r\n"
    address = ("127.0.0.1", int(replica.url.rsplit(":", 1)[1]))
    for delay in (0, 0.001, 0.01, 0.1):
        with socket.create_connection(address) as connection:
            connection.sendall(head.encode() + body)
            time.sleep(delay)
    answer = replica.ask("POST", f"/v1/{path}", request, Idempotency_Key=f"gone-{path}")
    assert answer.status in (200, 202), answer.data
    if path == "exec-jobs":
        assert replica.follow(answer.json()["command_id"])[1] == b"1\n"
    else:
        assert answer.json()["stdout"] == "1\n"
