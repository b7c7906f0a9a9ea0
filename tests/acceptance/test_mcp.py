"""``oncebox mcp``, driven by the protocol's own client."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp import Client, StdioServerParameters

from service.adapters.mcp.results import HEAD, MOST, Excerpt
from tests.acceptance.http_rig import Replica
from tests.support.ports import free_port
from tests.support.processes import Spawner

pytestmark = pytest.mark.acceptance

Connected = Callable[[], Any]


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    spawner = Spawner(tmp_path_factory.mktemp("mcp"))
    yield Replica(spawner)
    spawner.kill_all()


@pytest.fixture(scope="module", params=["stdio", "http"])
def connected(
    request: pytest.FixtureRequest, replica: Replica, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Connected]:
    """Makes a client of a server, of stdio one of its own."""
    spawn = Spawner(tmp_path_factory.mktemp("server"))
    env = {**os.environ, "ONCEBOX_URL": replica.url}
    words = ["-m", "service.cli", "mcp"]
    url = ""
    if request.param == "http":
        port = free_port()
        process = spawn([sys.executable, *words, "--http", f"127.0.0.1:{port}"], name="mcp", env=env)
        url = f"http://127.0.0.1:{port}/mcp"
        process.wait_for_url(url, status=406)

    @asynccontextmanager
    async def connect() -> AsyncIterator[Client]:
        to: Any = url or StdioServerParameters(command=sys.executable, args=words, env=env)
        async with Client(to) as client:
            yield client

    yield connect
    spawn.kill_all()


async def call(client: Client, tool: str, /, **arguments: Any) -> Any:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.content
    assert answer.structured_content is not None
    return answer.structured_content


async def test_a_model_has_all_it_needs(connected: Connected) -> None:
    async with connected() as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == {
            "create_sandbox", "list_sandboxes", "delete_sandbox", "run", "job_status", "job_output", "cancel_job",
            "list_jobs", "read_file", "write_file", "list_files",
        }  # fmt: skip
        for tool in tools.values():
            assert tool.description
            assert tool.output_schema
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint == (tool.name.split("_")[0] in ("list", "read", "job"))
        sandbox_id = (await call(client, "create_sandbox"))["sandbox_id"]
        listed = (await call(client, "list_sandboxes"))["sandboxes"]
        assert sandbox_id in [each["sandbox_id"] for each in listed]
        await call(client, "write_file", sandbox_id=sandbox_id, path="in/data", content="5\n", mode="0600")
        ran = await call(client, "run", sandbox_id=sandbox_id, command="cat in/data; echo $((2 + 3)) >sum; exit 4")
        assert (ran["state"], ran["exit_code"], ran["output"]) == ("exited", 4, "5\n")
        read = await call(client, "read_file", sandbox_id=sandbox_id, path="sum")
        assert (read["text"], read["size"]) == ("5\n", 2)
        assert (await call(client, "read_file", sandbox_id=sandbox_id, path="sum", offset=1))["text"] == "\n"
        files = (await call(client, "list_files", sandbox_id=sandbox_id))["files"]
        assert {os.path.basename(each["path"]): each["type"] for each in files} == {"in": "directory", "sum": "file"}
        [job] = (await call(client, "list_jobs", sandbox_id=sandbox_id))["jobs"]
        assert job["command_id"] == ran["command_id"]
        await call(client, "delete_sandbox", sandbox_id=sandbox_id)


async def test_a_dropped_client_finds_its_job_again_by_its_key(connected: Connected) -> None:
    command = {"command": "echo begun; sleep 1; echo ended; cat /proc/sys/kernel/random/uuid", "key": "the-build"}
    async with connected() as client:
        sandbox_id = (await call(client, "create_sandbox", key=f"box-{id(connected)}"))["sandbox_id"]
        first = await call(client, "run", sandbox_id=sandbox_id, wait=0, **command)
        assert first["state"] in ("pending", "running")
        assert first["command_id"] in first["advice"]
    async with connected() as client:
        again = await call(client, "run", sandbox_id=sandbox_id, wait=60, **command)
        assert again["command_id"] == first["command_id"]
        assert again["output"].startswith("begun\nended\n")
        assert (await call(client, "job_status", command_id=first["command_id"]))["output"] == again["output"]
        await call(client, "delete_sandbox", sandbox_id=sandbox_id)


async def test_long_output_is_bounded_and_read_on_by_cursor(connected: Connected) -> None:
    async with connected() as client:
        sandbox_id = (await call(client, "create_sandbox"))["sandbox_id"]
        ran = await call(client, "run", sandbox_id=sandbox_id, command="seq 1 20000")
        whole = "".join(f"{number}\n" for number in range(1, 20_001))
        assert len(ran["output"]) < MOST + 100
        assert ran["output_left_out"] == len(whole) - MOST
        assert ran["output"].endswith("20000\n")
        parts, cursor = [], None
        while True:
            part = await call(client, "job_output", command_id=ran["command_id"], cursor=cursor)
            assert len(part["output"]) <= MOST
            parts.append(part["output"])
            if (cursor := part["cursor"]) is None:
                break
        assert "".join(parts) == whole
        await call(client, "delete_sandbox", sandbox_id=sandbox_id)


async def test_outputs_that_are_apart_are_read_each_by_itself(connected: Connected, replica: Replica) -> None:
    async with connected() as client:
        sandbox_id = (await call(client, "create_sandbox"))["sandbox_id"]
        request = {"sandbox_id": sandbox_id, "command": "echo out; echo err >&2", "stderr": "apart"}
        job = replica.ask("POST", "/v1/exec-jobs", request).json()["command_id"]
        over = await call(client, "job_status", command_id=job, wait=60)
        assert (over["state"], over["output"]) == ("exited", "out\nerr\n")
        for stream, text in (("stdout", "out\n"), ("stderr", "err\n")):
            assert (await call(client, "job_output", command_id=job, stream=stream))["output"] == text
        refused = await client.call_tool("job_output", {"command_id": job})
        assert refused.is_error
        assert "stream" in str(refused.content)
        await call(client, "delete_sandbox", sandbox_id=sandbox_id)


async def test_who_waits_is_told_how_far_it_is_and_may_cancel(connected: Connected) -> None:
    told: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with connected() as client:
        sandbox_id = (await call(client, "create_sandbox"))["sandbox_id"]
        arguments = {"sandbox_id": sandbox_id, "command": "sleep 600", "wait": 3}
        answer = await client.call_tool("run", arguments, progress_callback=note)
        job = answer.structured_content
        assert job is not None
        assert job["state"] == "running"
        assert told
        await call(client, "cancel_job", command_id=job["command_id"])
        over = await call(client, "job_status", command_id=job["command_id"], wait=60)
        assert over["state"] == "cancelled"
        await call(client, "delete_sandbox", sandbox_id=sandbox_id)


async def test_what_goes_wrong_is_said(connected: Connected) -> None:
    async with connected() as client:
        for tool, arguments, said in (
            ("run", {"sandbox_id": "nope", "command": "true"}, "not found"),
            ("job_status", {"command_id": "nope"}, "not found"),
            ("run", {"sandbox_id": "nope", "command": "true", "wait": 301}, "300"),
            ("write_file", {"sandbox_id": "s", "path": "f", "content": "?", "encoding": "base64"}, "base64"),
        ):
            answer = await client.call_tool(tool, arguments)
            assert answer.is_error
            assert said.lower() in str(answer.content).lower(), answer.content


async def test_bytes_go_in_as_base64(connected: Connected, replica: Replica) -> None:
    data = bytes(range(256))
    async with connected() as client:
        sandbox_id = (await call(client, "create_sandbox"))["sandbox_id"]
        content = base64.b64encode(data).decode()
        await call(client, "write_file", sandbox_id=sandbox_id, path="b", content=content, encoding="base64")
        assert replica.ask("GET", f"/v1/sandboxes/{sandbox_id}/files?path=b").data == data
        await call(client, "delete_sandbox", sandbox_id=sandbox_id)


def test_a_text_that_is_too_long_keeps_its_beginning_and_its_end() -> None:
    excerpt = Excerpt()
    excerpt.add("x" * MOST)
    assert (str(excerpt), excerpt.left_out) == ("x" * MOST, 0)
    excerpt = Excerpt()
    for part in ["a" * HEAD, "b" * 7, "c" * (MOST - HEAD - 1), "c"]:
        excerpt.add(part)
    shown = str(excerpt)
    assert excerpt.left_out == 7
    assert shown.startswith("a" * HEAD + "\n[... 7 characters")
    assert shown.endswith("]\n" + "c" * (MOST - HEAD))
    excerpt.add("d" * MOST * 9)
    assert len(excerpt._first) + len(excerpt._last) <= 2 * MOST - HEAD, "no more is kept"


@pytest.mark.parametrize("bind", ["0.0.0.0:8800", "8800", "example.org:1", "127.0.0.1:99999", "127.0.0.1:"])
def test_only_this_machine_may_reach_it(spawn: Spawner, bind: str) -> None:
    process = spawn([sys.executable, "-m", "service.cli", "mcp", "--http", bind], name="refused")
    assert process.wait() == 2
    assert "loopback" in process.stderr
