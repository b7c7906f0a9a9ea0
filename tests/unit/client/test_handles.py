"""What callers hold in their hands: clients, sandboxes, jobs, maps."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from service.client import (
    AsyncClient,
    AsyncJob,
    AsyncSandbox,
    Client,
    CommandFailed,
    EngineUnavailable,
    InvalidIdempotencyKey,
    InvalidRequest,
    Job,
    JobState,
    OutputTooLarge,
    Sandbox,
    SandboxNotFound,
)
from service.client.inputs import FILES, INLINE
from service.client.steps import Answer
from tests.support.waiting import PATIENCE
from tests.unit.client.fake_service import FakeService, Script, answer, problem
from tests.unit.client.scripted import DROPPED, Scripted, body, done, job, read, sandbox
from tests.unit.client.virtual import Clock, Undisturbed, hooks

Pair = tuple[type[Any], type[Any]]


def served(**scripts: Script) -> tuple[FakeService, Client, AsyncClient]:
    service, clock = FakeService(scripts), Clock()
    network = Undisturbed(service, clock)
    return (
        service,
        Client("http://fake", _hooks=hooks(network, clock)),
        AsyncClient("http://fake", _hooks=hooks(network, clock, 1)),
    )


# Where to


def test_url_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONCEBOX_URL", raising=False)
    assert Client().url == "http://127.0.0.1:8700"
    monkeypatch.setenv("ONCEBOX_URL", "https://boxes.example/base/")
    monkeypatch.setenv("ONCEBOX_API_KEY", "k-1")
    client = Client()
    assert client.url == "https://boxes.example/base"
    assert client._target.headers["Authorization"] == "Bearer k-1"
    assert Client("http://other", "k-2")._target.headers["Authorization"] == "Bearer k-2"


@pytest.mark.parametrize("url", ["127.0.0.1:8700", "ftp://x", "http://", "http://x?y=1", "http://x#y"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not an http or https URL"):
        Client(url)


def test_an_api_key_that_no_header_can_carry_is_refused_without_showing_it() -> None:
    with pytest.raises(ValueError, match="API key") as caught:
        Client("http://x", "secret\r\nX-Evil: 1")
    assert "secret" not in str(caught.value)


# Both clients are one


@pytest.mark.parametrize("pair", [(Client, AsyncClient), (Sandbox, AsyncSandbox), (Job, AsyncJob)])
def test_both_have_the_same_methods_with_the_same_parameters(pair: Pair) -> None:
    def interface(cls: type[Any]) -> dict[str, list[str]]:
        members = inspect.getmembers(cls, inspect.isfunction)
        return {name: list(inspect.signature(member).parameters) for name, member in members if name[0] != "_"}

    assert interface(pair[0]) == interface(pair[1])


@pytest.mark.parametrize("cls", [Client, AsyncClient, Sandbox, AsyncSandbox, Job, AsyncJob])
def test_everything_public_is_documented(cls: type[Any]) -> None:
    members = {**dict(inspect.getmembers(cls, inspect.isfunction)), **dict(inspect.getmembers(cls))}
    public = [member for name, member in members.items() if name[0] != "_"]
    assert public
    assert all(inspect.getdoc(member) for member in public)


# Sandboxes


def test_a_block_deletes_its_sandbox_at_the_end() -> None:
    service, client, _ = served()
    with client.create_sandbox() as box:
        assert box.id in service.sandboxes
    assert box.id not in service.sandboxes


async def test_an_asynchronous_block_deletes_its_sandbox_at_the_end() -> None:
    service, _, client = served()
    async with client, await client.create_sandbox() as box:
        assert box.id in service.sandboxes
    assert box.id not in service.sandboxes


def test_an_error_in_the_block_is_not_hidden_by_a_delete_that_fails() -> None:
    network = Scripted(*[problem(503, "ENGINE_UNAVAILABLE")] * 999)
    began = network.clock.now
    with pytest.raises(KeyError), network.client().sandbox("sb-1"):
        raise KeyError
    assert network.clock.now - began <= 31

    with pytest.raises(EngineUnavailable), network.client().sandbox("sb-1"):
        pass


async def test_the_same_holds_for_the_asynchronous_block() -> None:
    network = Scripted(*[problem(503, "ENGINE_UNAVAILABLE")] * 999)
    with pytest.raises(KeyError):
        async with network.async_client().sandbox("sb-1"):
            raise KeyError
    with pytest.raises(EngineUnavailable):
        async with network.async_client().sandbox("sb-1"):
            pass


def test_a_sandbox_that_is_gone_already_is_no_error_at_the_end_of_its_block() -> None:
    with Scripted(problem(404, "SANDBOX_NOT_FOUND")).client().sandbox("sb-1"):
        pass


def test_ids_are_quoted() -> None:
    network = Scripted(answer(200, sandbox(sandbox_id="a/b?c")), done(command_id="../x"))
    network.client().sandbox("a/b?c").refresh()
    network.client().job("../x").status()

    assert network.requests[0].path == "/v1/sandboxes/a%2Fb%3Fc"
    assert network.requests[1].path.startswith("/v1/exec-jobs/..%2Fx?")


def test_lists_ask_for_page_after_page() -> None:
    service, client, _ = served(make=Script(ends=5))
    boxes = [client.create_sandbox(metadata={"n": str(n % 2), "a b": "c=d&"}) for n in range(7)]
    for box in boxes[:5]:
        box.submit("make", metadata={"run": "1"})

    assert [box.id for box in client.sandboxes()] == [box.id for box in boxes]
    odd = list(client.sandboxes(metadata={"n": "1", "a b": "c=d&"}, state=["running", "paused"]))
    assert [box.id for box in odd] == [boxes[n].id for n in (1, 3, 5)]
    assert all(box.info and box.info.ready for box in odd)
    assert len(list(client.jobs())) == 5
    (one,) = client.jobs(sandbox_id=boxes[2].id, state=JobState.RUNNING, metadata={"run": "1"})
    assert one.info is not None
    assert one.info.command == "make"
    assert list(client.jobs(state="lost")) == []
    assert [job.info.kind for job in client.jobs(kind="exec") if job.info] == []
    assert len(list(client.jobs(kind="job", q="MAK"))) == 5
    assert service.page == 2


async def test_states_that_can_be_read_once_filter_every_page() -> None:
    _, client, async_client = served(make=Script(ends=5))
    box = client.create_sandbox()
    for _ in range(5):
        box.submit("make")
        box.submit("quick")

    running = [job.id for job in client.jobs(state=iter(["running"]))]
    assert len(running) == 5
    assert [job.id async for job in async_client.jobs(state=iter(["running"]))] == running
    assert list(client.sandboxes(state=iter(["paused"]))) == []


# Running


def test_run_is_a_job_with_its_streams_apart_at_every_timeout() -> None:
    script = Script(blocks=((0.0, b"out"), (2.0, b"put")), errors=((1.0, b"err"),), ends=3.0, exit_code=4)
    service, client, _ = served(make=script)
    box = client.create_sandbox()

    results = [box.run("make"), box.run("make", timeout=60), box.run("make", timeout=61), box.run(["make"])]
    results.append(box.run("make", metadata={"a": "b"}))

    assert [(job.kind, job.apart) for job in service.jobs.values()] == [("job", True)] * 5
    assert [job.timeout for job in service.jobs.values()] == [60, 60, 61, 60, 60]
    for result in results:
        assert (result.stdout, result.stderr, result.output) == ("output", "err", "outputerr")
        assert (result.exit_code, result.output_complete) == (4, True)
    with pytest.raises(CommandFailed, match="the command exited with 4"):
        box.run("make", check=True)


def test_run_shows_both_streams_as_they_come() -> None:
    script = Script(
        blocks=tuple((float(at), b"o%d " % at) for at in range(0, 20, 4)),
        errors=tuple((at + 0.5, b"e%d " % at) for at in range(0, 20, 4)),
        ends=20.0,
    )
    _, client, _ = served(make=script)
    told: list[str] = []

    result = client.create_sandbox().run("make", timeout=90, on_stdout=told.append, on_stderr=told.append)

    assert (result.stdout, result.stderr) == ("o0 o4 o8 o12 o16 ", "e0 e4 e8 e12 e16 ")
    assert told.index("e0 ") < told.index("o8 "), "one stream does not wait for the other's end"
    assert "".join(text for text in told if text[0] == "o") == result.stdout


async def test_more_than_run_takes_is_an_error_with_the_job() -> None:
    script = Script(blocks=((0.0, b"x" * 100),), errors=((0.0, b"y" * 100),), ends=1.0)
    _, client, async_client = served(make=script)
    box = client.create_sandbox()

    assert len(box.run("make", max_output=200).output) == 200
    with pytest.raises(OutputTooLarge) as caught:
        box.run("make", max_output=199)
    assert "".join(caught.value.job.stream("stderr")) == "y" * 100
    with pytest.raises(OutputTooLarge):
        await async_client.sandbox(box.id).run("make", max_output=100)


async def test_a_job_that_is_found_again_tells_that_its_streams_are_apart() -> None:
    script = Script(blocks=((0.0, b"out"),), errors=((0.0, b"err"),), ends=1.0)
    _, client, async_client = served(make=script)
    submitted = client.create_sandbox().submit("make", stderr="apart")

    found = client.job(submitted.id)
    assert (found.result().stdout, found.result().stderr) == ("out", "err")
    assert client.job(submitted.id).status().streams == "apart"
    assert (await async_client.job(submitted.id).result()).stderr == "err"
    assert b"".join(client.job(submitted.id).stream_bytes("stderr")) == b"err"
    with pytest.raises(InvalidRequest, match="stream"):
        list(client.job(submitted.id).stream())


def test_what_a_command_reads_travels_in_its_request_or_under_the_hash_of_its_content() -> None:
    network = Scripted(*[answer(202, job("pending"))] * 5)
    box = network.client().sandbox("sb-1")
    for stdin in ("é", b"\xff", io.BytesIO(b"from a file"), "", None):
        box.submit("cat", stdin=stdin)
    bodies = [request.body for request in network.requests]
    sent = [json.loads(each) for each in bodies if isinstance(each, bytes)]
    assert [(each.get("stdin"), each.get("stdin_encoding")) for each in sent] == [
        ("é", None),
        ("/w==", "base64"),
        ("from a file", None),
        ("", None),
        (None, None),
    ]


LONG_INPUT = b"0123456789abcdef" * (INLINE // 16 + 1)


def _uploads(network: Scripted) -> list[tuple[str, str]]:
    """Method and path of each request about a file."""
    parts = [(request.method, urlsplit(request.path)) for request in network.requests]
    return [(method, parse_qs(each.query)["path"][0]) for method, each in parts if each.path.endswith("/files")]


def _stdin_paths(network: Scripted) -> list[str]:
    posted = [request for request in network.requests if request.method == "POST"]
    return [body(request)["stdin_path"] for request in posted]


def _put() -> Answer:
    return answer(201, {"path": "/x", "type": "file", "size": 1, "mode": "0644", "modified_at": "2026-01-01T00:00:00Z"})


def test_a_long_input_without_a_key_is_removed_when_its_command_has_ended() -> None:
    end = [read("exited", "", None, exit_code=0, output_complete=True)] * 2
    network = Scripted(_put(), answer(202, job("pending")), *end, answer(204, None))

    assert network.client().sandbox("sb-1").run("cat", stdin=LONG_INPUT).exit_code == 0

    (sent,) = _stdin_paths(network)
    assert sent.startswith(FILES + hashlib.sha256(LONG_INPUT).hexdigest() + "-")
    assert _uploads(network) == [("PUT", sent), ("DELETE", sent)]


async def test_an_exec_s_is_removed_too() -> None:
    done = answer(
        200,
        {"command_id": "cmd_1", "exit_code": 0, "timed_out": False, "stdout": "", "stderr": "", "truncated": False,
         "duration": 0.1},
    )  # fmt: skip
    network = Scripted(_put(), done, answer(204, None))

    await network.async_client().sandbox("sb-1").exec("cat", stdin=LONG_INPUT)

    (sent,) = _stdin_paths(network)
    assert _uploads(network) == [("PUT", sent), ("DELETE", sent)]


@pytest.mark.parametrize(
    ("state", "options"),
    [("exited", {"idempotency_key": "k"}), ("failed", {}), ("lost", {})],
    ids=["key", "failed", "lost"],
)
def test_one_that_may_be_read_again_stays(state: str, options: dict[str, Any]) -> None:
    end = [read(state, "", None, exit_code=None, output_complete=True)] * 2
    network = Scripted(_put(), answer(202, job("pending")), *end)

    network.client().sandbox("sb-1").run("cat", stdin=LONG_INPUT, **options)

    (sent,) = _stdin_paths(network)
    assert _uploads(network) == [("PUT", sent)]
    assert sent.startswith(FILES + hashlib.sha256(LONG_INPUT).hexdigest() + "-")


@pytest.mark.parametrize("verb", ["run", "exec"])
def test_who_repeats_it_with_the_error_s_key_asks_for_the_same(verb: str) -> None:
    network = Scripted(_put(), problem(404, "SANDBOX_NOT_FOUND", "no"), _put(), problem(404, "SANDBOX_NOT_FOUND", "no"))
    call = getattr(network.client().sandbox("sb-1"), verb)

    with pytest.raises(SandboxNotFound) as first:
        call("cat", stdin=LONG_INPUT)
    with pytest.raises(SandboxNotFound):
        call("cat", stdin=LONG_INPUT, idempotency_key=first.value.idempotency_key)

    posted = [
        (request.headers["Idempotency-Key"], body(request)) for request in network.requests if request.method == "POST"
    ]
    assert posted[0] == posted[1]


def test_an_input_that_can_not_be_removed_is_no_failure_of_its_command() -> None:
    end = [read("exited", "", None, exit_code=0, output_complete=True)] * 2
    network = Scripted(_put(), answer(202, job("pending")), *end, problem(403, "FILE_PERMISSION_DENIED", "no"))

    assert network.client().sandbox("sb-1").run("cat", stdin=LONG_INPUT).exit_code == 0


def test_a_file_of_the_caller_s_stays() -> None:
    end = [read("exited", "", None, exit_code=0, output_complete=True)] * 2
    network = Scripted(answer(202, job("pending")), *end)

    network.client().sandbox("sb-1").run("cat", stdin_path=FILES + "mine")

    assert _uploads(network) == []


def test_a_long_input_and_a_path_are_two() -> None:
    with pytest.raises(InvalidRequest, match="stdin_path"):
        Scripted().client().sandbox("sb-1").run("cat", stdin=LONG_INPUT, stdin_path="/etc/passwd")


def test_a_map_s_commands_read_and_are_run_as_run_s() -> None:
    network = Scripted(*[answer(202, job("pending")), done()] * 2)
    words = ["cat", "-"]

    results = list(network.client().map(words, ["sb-1", "sb-2"], concurrency=1, stdin=io.BytesIO(b"in"), user="nobody"))

    assert [item.error for item in results] == [None, None]
    posted = [body(request) for request in network.requests if request.method == "POST"]
    assert [(each["argv"], each["stdin"], each["user"]) for each in posted] == [(words, "in", "nobody")] * 2


def test_a_map_s_long_input_is_uploaded_to_each_sandbox() -> None:
    network = Scripted(*[_put(), answer(202, job("pending")), done()] * 2)

    results = list(network.client().map("cat", ["sb-1", "sb-2"], concurrency=1, stdin=LONG_INPUT))

    assert [item.error for item in results] == [None, None]
    name = FILES + hashlib.sha256(LONG_INPUT).hexdigest()
    assert _uploads(network) == [("PUT", name)] * 2
    assert _stdin_paths(network) == [name] * 2


def test_a_part_of_one_stream_is_read_by_its_name() -> None:
    script = Script(blocks=((0.0, b"out"),), errors=((0.0, b"err"),), ends=1.0)
    _, client, _ = served(make=script)
    made = client.create_sandbox().submit("make", stderr="apart")

    assert (made.read("stdout").text, made.read("stderr").text) == ("out", "err")
    with pytest.raises(InvalidRequest, match="stream"):
        made.read()


def test_the_state_of_a_job_with_its_streams_apart_is_one_request() -> None:
    network = Scripted(answer(202, job("running", streams="apart")), read())
    made = network.client().sandbox("sb-1").submit("make", stderr="apart")

    made.status()

    assert len(network.requests) == 2


def test_output_goes_to_a_path_a_file_or_a_function(tmp_path: Path) -> None:
    data = b"\xff\x00 text \xc3\xa9"
    _, client, _ = served(make=Script(blocks=((0.0, data),), exit_code=0))
    job = client.create_sandbox().submit("make")
    path, file = tmp_path / "log", io.StringIO()
    chunks: list[bytes] = []

    results = [job.output_to(path), job.output_to(file), job.output_to(chunks.append)]

    assert path.read_bytes() == b"".join(chunks) == data
    assert file.getvalue() == data.decode("utf-8", "replace")
    assert all(result.output == "" and result.output_complete and result.ok for result in results)


async def test_an_asynchronous_function_is_awaited() -> None:
    _, _, client = served(make=Script(blocks=((0.0, b"a"), (9.0, b"b")), ends=9.0))
    job = await (await client.create_sandbox()).submit("make")
    chunks: list[str] = []

    async def take(chunk: str) -> None:
        chunks.append(chunk)

    await job.output_to(take, text=True)

    assert chunks == ["a", "b"]


def test_status_looks_once() -> None:
    network = Scripted(done("tail"))
    handle = network.client().job("cmd_1")

    assert handle.status().exit_code == 0
    assert "limit=1024" in network.requests[0].path
    assert handle.output_complete


async def test_the_asynchronous_job_does_all_of_it_too(tmp_path: Path) -> None:
    data = b"one \xff two"
    _, _, client = served(make=Script(blocks=((0.0, data),), ends=2.0, exit_code=3))
    job = await (await client.create_sandbox()).submit("make")

    assert (await job.status()).state is JobState.RUNNING
    assert (await job.output_to(tmp_path / "log")).exit_code == 3
    assert (tmp_path / "log").read_bytes() == data
    assert [chunk async for chunk in job.stream(follow=False)] == ["one \ufffd two"]
    assert job.cursor is not None
    with pytest.raises(CommandFailed):
        await job.result(check=True)


def replaced() -> list[Answer]:
    """An output that is replaced by a shorter one, as text and as bytes."""
    return [
        read(output="bG9uZyB0ZXh0", cursor="c1", encoding="base64"),
        read(output="bG9uZw==", cursor="c2", encoding="base64", replace=True),
        done(encoding="base64"),
    ]


async def test_a_stream_gives_what_it_held_back_at_its_end() -> None:
    said = [b"long text", b"long"]

    assert list(Scripted(*replaced()).client().job("cmd_1").stream_bytes()) == said
    assert list(Scripted(*replaced()).client().job("cmd_1").stream()) == [chunk.decode() for chunk in said]
    handle = Scripted(*replaced()).async_client().job("cmd_1")
    assert [chunk async for chunk in handle.stream_bytes()] == said
    handle = Scripted(*replaced()).async_client().job("cmd_1")
    assert [chunk async for chunk in handle.stream()] == [chunk.decode() for chunk in said]


@pytest.mark.parametrize("options", [{"timeout": 0}, {"timeout": -1}, {"deadline": -1}])
def test_times_that_are_none_are_refused(options: dict[str, Any]) -> None:
    for cls in (Client, AsyncClient):
        with pytest.raises(ValueError, match="seconds"):
            cls(**options)


# Map


def test_map_runs_one_command_everywhere() -> None:
    service, client, _ = served(make=Script(blocks=((0.0, b"out"),), ends=3.0))
    boxes = [client.create_sandbox() for _ in range(5)]
    names: list[Sandbox | str] = [boxes[0], *(box.id for box in boxes[1:]), "sb-none"]

    results = {item.sandbox_id: item for item in client.map("make", names, concurrency=3, timeout=600)}

    assert len(results) == 6
    assert all(results[box.id].unwrap().output == "out" for box in boxes)
    assert all(results[box.id].ok and results[box.id].exit_code == 0 for box in boxes)
    failed = results["sb-none"]
    assert isinstance(failed.error, SandboxNotFound)
    assert (failed.ok, failed.exit_code, failed.output) == (False, None, "")
    with pytest.raises(SandboxNotFound):
        failed.unwrap()
    assert {job.timeout for job in service.jobs.values()} == {600}


def test_a_map_goes_on_where_a_dead_caller_left_it() -> None:
    service, client, _ = served(make=Script(ends=3.0))
    boxes = [client.create_sandbox() for _ in range(4)]
    first = client.map("make", [*boxes, boxes[0]], key="run-7", concurrency=1)
    next(iter(first))

    again = list(client.map("make", [*boxes, boxes[0]], key="run-7", concurrency=1))

    assert len(service.jobs) == 5  # one of the sandboxes is there twice
    assert set(service.executions.values()) == {1}
    assert len({item.idempotency_key for item in again}) == 5
    assert {item.command_id for item in again} == set(service.jobs)
    assert len(list(client.map("make", boxes))) == 4
    assert len(service.jobs) == 9


async def test_both_clients_of_every_version_make_the_same_keys() -> None:
    gone = problem(404, "SANDBOX_NOT_FOUND")
    (sync_item,) = Scripted(gone).client().map("make", ["sb-1"], key="k")
    (async_item,) = [item async for item in Scripted(gone).async_client().map("make", ["sb-1"], key="k")]

    golden = "k-0f349c7dea2a21ace0ba2ce13eb3db13"
    assert sync_item.idempotency_key == async_item.idempotency_key == golden


async def test_an_asynchronous_map_takes_asynchronous_lists() -> None:
    service, _, client = served(make=Script(ends=3.0))
    for _ in range(5):
        await client.create_sandbox()

    results = [item async for item in client.map("make", client.sandboxes(), concurrency=2)]

    assert sorted(item.sandbox_id for item in results) == sorted(service.sandboxes)
    assert all(item.ok for item in results)


async def test_leaving_an_asynchronous_map_ends_its_tasks() -> None:
    service, _, client = served(make=Script(ends=3.0))
    for _ in range(9):
        await client.create_sandbox()
    results = client.map("make", list(service.sandboxes), concurrency=1)
    assert isinstance(results, AsyncIterator)
    async for _ in results:
        break
    await results.aclose()  # type: ignore[attr-defined]

    assert len(service.jobs) < 9


def test_leaving_a_map_ends_its_threads() -> None:
    service, client, _ = served(make=Script(ends=3.0))
    for _ in range(9):
        client.create_sandbox()
    results = client.map("make", list(service.sandboxes), concurrency=2)
    next(results)
    results.close()  # type: ignore[attr-defined]

    workers = [thread for thread in threading.enumerate() if thread.name.startswith("oncebox-map")]
    for worker in workers:
        worker.join(PATIENCE)
    assert not any(worker.is_alive() for worker in workers)
    assert len(service.jobs) < 9


def boxes_that_break() -> Iterator[str]:
    yield "sb-0"
    raise RuntimeError("no more boxes")


def test_an_error_of_the_list_of_sandboxes_is_the_caller_s() -> None:
    _, client, _ = served()
    client.create_sandbox()
    with pytest.raises(RuntimeError, match="no more boxes"):
        list(client.map("make", boxes_that_break(), concurrency=1))


async def test_so_it_is_in_the_asynchronous_map() -> None:
    _, _, client = served()
    await client.create_sandbox()
    with pytest.raises(RuntimeError, match="no more boxes"):
        [item async for item in client.map("make", boxes_that_break(), concurrency=1)]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"key": "two words"}, InvalidIdempotencyKey),
        ({"key": "x" * 201}, ValueError),
        ({"concurrency": 0}, ValueError),
    ],
)
def test_a_map_that_can_t_be_is_refused_at_the_call(options: dict[str, Any], error: type[Exception]) -> None:
    _, client, async_client = served()
    calls: list[Callable[..., Any]] = [client.map, async_client.map]
    for call in calls:
        with pytest.raises(error, match=r"."):
            call("make", [], **options)


def test_resources_are_sent_in_either_form() -> None:
    from service.client import Resources

    network = Scripted(*[answer(201, sandbox())] * 2)
    client = network.client()
    client.create_sandbox(resources={"cpu": "500m"})
    client.create_sandbox(resources=Resources(memory="4Gi"), entrypoint=("sleep", "1"))

    assert body(network.requests[0]) == {"resources": {"cpu": "500m"}}
    assert body(network.requests[1]) == {"resources": {"memory": "4Gi"}, "entrypoint": ["sleep", "1"]}


def test_what_a_handle_knows_is_on_it() -> None:
    network = Scripted(answer(201, sandbox(), idempotent_replayed="true"), DROPPED, answer(202, job("pending")))
    box = network.client().create_sandbox(idempotency_key="task-17")
    handle = box.submit("make", idempotency_key="make-1")

    assert (box.replayed, box.idempotency_key, repr(box)) == (True, "task-17", "<Sandbox sb-1 running>")
    assert (handle.replayed, handle.idempotency_key) == (False, "make-1")
    assert repr(handle) == "<Job cmd_1 pending>"


# Output that is cut


CUT = [
    ("70 bytes of its output are no longer kept", read("exited", "out", "c1", exit_code=0, skipped_bytes=70), done()),
    ("not all of its output could be read", read("exited", "out", None, exit_code=0)),
]


@pytest.mark.parametrize(("said", "replies"), [(said, replies) for said, *replies in CUT])
async def test_a_job_whose_output_is_cut_is_not_ok(said: str, replies: list[Answer]) -> None:
    result = Scripted(*replies).client().job("cmd_1").result()

    assert (result.state, result.exit_code, result.output) == ("exited", 0, "out")
    assert result.truncated
    assert not result.ok
    with pytest.raises(CommandFailed, match=said):
        Scripted(*replies).client().job("cmd_1").result(check=True)
    with pytest.raises(CommandFailed, match=said):
        await Scripted(*replies).async_client().job("cmd_1").output_to(io.BytesIO(), check=True)
    mapped = Scripted(answer(202, job("pending")), *replies).client().map("make", ["sb-1"], concurrency=1)
    assert [item.ok for item in mapped] == [False]


def test_an_exec_s_job_says_that_it_is_cut_too() -> None:
    page = job(
        "exited", kind="exec", stdout="out", stderr="", truncated=True, skipped_bytes=70, exit_code=0, cursor=None
    )

    result = Scripted(answer(200, {**page, "output_complete": True})).client().job("cmd_1").result()

    assert (result.truncated, result.ok, result.skipped_bytes) == (True, False, 70)
