"""Every call of the engine client against a running local engine, directly and through the proxy."""

import asyncio
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

import aiohttp
import msgspec
import pytest

from service.core.fence import startup
from service.engine import OpenSandboxEngine
from service.engine.endpoints import Mode
from service.messages import SandboxState
from service.ports.engine import (
    CommandEvent,
    CommandMissing,
    CommandNotRunning,
    CommandSpec,
    CommandStatus,
    Denied,
    Engine,
    EngineError,
    FileMissing,
    Mount,
    NotReached,
    Refused,
    SandboxMissing,
    SandboxNotReady,
    SandboxSpec,
    StartFailed,
    Unclear,
)
from tests.support.processes import ManagedProcess
from tests.support.waiting import PATIENCE

T = TypeVar("T")

KEY = "the-engines-key"
SPEC = SandboxSpec(image="python:3.12", entrypoint=["sleep", "infinity"], cpu="1", memory="1Gi", timeout=600)


def variant(**change: object) -> SandboxSpec:
    """The usual sandbox, but for some fields."""
    return msgspec.structs.replace(SPEC, **change)


@pytest.fixture(scope="module")
def engine_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("local-engine")
    (folder / "volumes").mkdir()
    process = ManagedProcess(
        [
            *(sys.executable, "-m", "service.local_engine"),
            *("--bind", "127.0.0.1:0", "--dev-controls", "--root", folder / "root"),
            *("--volume-root", folder / "volumes"),
        ],
        name="local engine",
        folder=folder,
        env={**os.environ, "OPEN_SANDBOX_API_KEY": KEY},
    )
    with process:
        yield process.wait_for_line(r'"url": "(http://[^"]+)"')[1]


Make = Callable[..., OpenSandboxEngine]


@pytest.fixture
async def make(engine_url: str) -> AsyncIterator[Make]:
    """Makes clients, which are closed at the end of the test."""
    made: list[OpenSandboxEngine] = []

    def client(proxy: Mode = "auto", api_key: str = KEY, **options: object) -> OpenSandboxEngine:
        made.append(OpenSandboxEngine(engine_url, api_key=api_key, proxy=proxy, **options))  # type: ignore[arg-type]
        return made[-1]

    yield client
    for each in made:
        await each.close()


@pytest.fixture(params=["never", "auto", "always"])
async def engine(request: pytest.FixtureRequest, make: Make) -> OpenSandboxEngine:
    """A client that reaches execd directly, wherever that works, and through the proxy."""
    return make(request.param)


@pytest.fixture
async def sandbox(engine: OpenSandboxEngine) -> AsyncIterator[str]:
    """A sandbox whose daemon answers."""
    info = await engine.create_sandbox(SPEC)
    await until(lambda: answers(engine, info.id))
    yield info.id
    await engine.delete_sandbox(info.id)


async def before_the_stream_ends(work: Callable[[], Awaitable[T]]) -> T:
    """What comes before the end of the stream, which is a second after the command's; on a busy machine at some try."""
    for _ in range(40):
        began = time.monotonic()
        found = await work()
        if time.monotonic() - began < 0.9:
            return found
    raise AssertionError("waited for the end of the stream")


async def answers(engine: Engine, sandbox: str) -> bool:
    try:
        await engine.ping(sandbox)
    except EngineError:
        return False
    return True


async def until(holds: Callable[[], object], timeout: float = PATIENCE) -> None:
    """Waits until `holds()`, awaited where it has to be, is true."""
    async with asyncio.timeout(timeout):
        while True:
            found = holds()
            if await found if asyncio.iscoroutine(found) else found:
                return
            await asyncio.sleep(0.02)


async def ended(engine: Engine, sandbox: str, command: str) -> CommandStatus:
    async with asyncio.timeout(60):
        while True:
            try:
                status = await engine.status(sandbox, command)
                if not status.running:
                    return status
            except CommandMissing:
                pass
            await asyncio.sleep(0.02)


async def order(engine_url: str, path: str, body: dict[str, object]) -> None:
    """A fault on order."""
    async with aiohttp.ClientSession() as session, session.post(f"{engine_url}/_dev/{path}", json=body) as reply:
        assert reply.status < 300, await reply.text()


# -- lifecycle


async def test_a_sandbox_is_made_found_and_deleted(make: Make) -> None:
    engine: Engine = make()
    metadata = {"oncebox.io/idem": "0123456789abcdef0123456789abcdef", "team": "a.b_c-d", "empty": ""}
    spec = SandboxSpec(
        image="python:3.12",
        entrypoint=["sleep", "infinity"],
        cpu="500m",
        memory="256Mi",
        timeout=600,
        metadata=metadata,
        env={"A": "1"},
    )
    before = time.time()
    made = await engine.create_sandbox(spec)
    assert made.state in (SandboxState.PENDING, SandboxState.RUNNING)
    assert made.metadata == metadata
    assert made.expires_at == pytest.approx(before + 600, abs=PATIENCE)
    assert made.created_at == pytest.approx(before, abs=PATIENCE)
    got = await engine.get_sandbox(made.id)
    assert got.image == "python:3.12"
    found = await engine.list_sandboxes(metadata, states=[SandboxState.RUNNING, SandboxState.PENDING])
    assert [each.id for each in found.items] == [made.id]
    assert not found.has_next
    assert (await engine.list_sandboxes({**metadata, "team": "b"})).items == []
    await engine.delete_sandbox(made.id)
    await engine.delete_sandbox(made.id)
    with pytest.raises(SandboxMissing):
        await engine.get_sandbox(made.id)


async def test_a_filter_is_taken_literally(make: Make) -> None:
    engine = make()
    first = await engine.create_sandbox(SPEC)
    for odd in ({"a&b": "c"}, {"a": "b=c"}, {"a": "b&c=d"}, {"%61": "x"}, {"a+b": "x y"}, {"\u00e9": "\u00fc"}):
        assert (await engine.list_sandboxes(odd)).items == []
    await engine.delete_sandbox(first.id)


async def test_pages(make: Make) -> None:
    engine = make()
    made = [await engine.create_sandbox(variant(metadata={"pages": "x"})) for _ in range(3)]
    first = await engine.list_sandboxes({"pages": "x"}, page=1, page_size=2)
    second = await engine.list_sandboxes({"pages": "x"}, page=2, page_size=2)
    assert (first.has_next, second.has_next) == (True, False)
    assert {each.id for each in first.items + second.items} == {each.id for each in made}
    for each in made:
        await engine.delete_sandbox(each.id)


async def test_an_expiry_is_moved_both_ways(make: Make) -> None:
    engine = make()
    made = await engine.create_sandbox(SPEC)
    for seconds in (3000, 120):
        wanted = time.time() + seconds
        assert await engine.renew_sandbox(made.id, wanted) == pytest.approx(wanted, abs=1.1)
        assert (await engine.get_sandbox(made.id)).expires_at == pytest.approx(wanted, abs=1.1)
    with pytest.raises(Refused):
        await engine.renew_sandbox(made.id, time.time() - 60)
    await engine.delete_sandbox(made.id)


async def test_pause_and_resume(make: Make) -> None:
    engine = make()
    made = await engine.create_sandbox(SPEC)
    await engine.pause_sandbox(made.id)
    assert (await engine.get_sandbox(made.id)).state is SandboxState.PAUSED
    with pytest.raises(SandboxNotReady):
        await engine.pause_sandbox(made.id)
    await engine.resume_sandbox(made.id)
    with pytest.raises(SandboxNotReady):
        await engine.resume_sandbox(made.id)
    await engine.delete_sandbox(made.id)


@pytest.mark.parametrize(
    "change",
    [{"metadata": {"a": "-b"}}, {"metadata": {"a": "x" * 64}}, {"timeout": 5}, {"cpu": "lots"}, {"entrypoint": []}],
)
async def test_what_the_engine_refuses_was_not_made(make: Make, change: dict[str, object]) -> None:
    engine = make()
    with pytest.raises(Refused) as caught:
        await engine.create_sandbox(variant(**change))
    assert caught.value.status in (400, 422)


async def test_volumes_are_asked_for_as_the_engine_wants_them(make: Make, engine_url: str) -> None:
    engine = make()
    outside = Mount(name="w", host="/etc", sub_path="a", mount_path="/w")
    with pytest.raises(Refused) as caught:
        await engine.create_sandbox(variant(volumes=[outside]))
    assert caught.value.code == "VOLUME::HOST_PATH_NOT_ALLOWED"
    escaping = Mount(name="w", host="/etc", sub_path="../x", mount_path="/w")
    with pytest.raises(Refused) as caught:
        await engine.create_sandbox(variant(volumes=[escaping]))
    assert caught.value.code == "VOLUME::INVALID_SUB_PATH"


async def test_a_wrong_key_is_our_trouble(make: Make) -> None:
    await make().check()
    for key in ("wrong", ""):
        with pytest.raises(Denied):
            await make(api_key=key).check()
        with pytest.raises(Denied):
            await make(api_key=key).create_sandbox(SPEC)


@pytest.mark.parametrize("odd", ["", ".", "..", "a/b", "../../health", "a?b", "a#b", "a%2fb", "\u00e9", "x" * 129])
async def test_an_id_that_can_be_none_is_missing_and_nothing_is_asked(make: Make, odd: str) -> None:
    calls: list[str] = []
    engine = make(observe=lambda kind, _, __: calls.append(kind))
    for call in (engine.get_sandbox(odd), engine.ping(odd), engine.submit(odd, CommandSpec(command="x", timeout=1))):
        with pytest.raises(SandboxMissing):
            await call
    assert calls == []


# -- commands


async def test_a_job_runs_and_its_output_is_read_by_ranges(engine: OpenSandboxEngine, sandbox: str) -> None:
    spec = CommandSpec(command='echo one; echo two >&2; printf "%s" "$X"; exit 7', timeout=60, env={"X": "\u00e9"})
    command = await before_the_stream_ends(lambda: engine.submit(sandbox, spec))
    status = await ended(engine, sandbox, command)
    assert (status.id, status.exit_code, status.signal, status.running) == (command, 7, None, False)
    assert status.content == spec.command
    assert status.started_at is not None
    assert status.finished_at is not None
    assert 0 <= status.finished_at - status.started_at < PATIENCE
    path = engine.output_path(command)
    whole = await engine.read_file(sandbox, path, 0, 1000)
    assert sorted(whole.data) == sorted("one\ntwo\n\u00e9".encode())
    assert whole.size == len(whole.data) == 10
    assert await engine.read_file(sandbox, path, 2, 3) == whole.__class__(2, whole.data[2:5], 10)
    assert await engine.read_file(sandbox, path, 10, 5) == whole.__class__(10, b"", 10)
    assert await engine.read_file(sandbox, path, 99, 5) == whole.__class__(99, b"", 10)
    assert await engine.log(sandbox, command, 0) == whole
    assert (await engine.log(sandbox, command, 10)).data == b""


async def test_an_empty_output_is_empty_and_a_missing_file_is_missing(engine: OpenSandboxEngine, sandbox: str) -> None:
    command = await engine.submit(sandbox, CommandSpec(command="true", timeout=60))
    path = engine.output_path(command)
    await ended(engine, sandbox, command)
    for offset in (0, 5):
        found = await engine.read_file(sandbox, path, offset, 10)
        assert (found.data, found.size) == (b"", 0)
    await engine.remove_files(sandbox, [path, "/tmp/never-was"])
    await engine.remove_files(sandbox, [path])
    await engine.remove_files(sandbox, [])
    with pytest.raises(FileMissing):
        await engine.read_file(sandbox, path, 0, 10)


async def test_odd_paths(engine: OpenSandboxEngine, sandbox: str) -> None:
    path = "/tmp/a b&c=d?#%41\u00e9"
    result = await engine.run_short(sandbox, f"printf x > '{path}'", timeout=60)
    assert result.exit_code == 0
    assert (await engine.read_file(sandbox, path, 0, 10)).data == b"x"
    await engine.remove_files(sandbox, [path])
    with pytest.raises(FileMissing):
        await engine.read_file(sandbox, path, 0, 10)


async def test_a_large_output_in_pieces(engine: OpenSandboxEngine, sandbox: str) -> None:
    command = await engine.submit(sandbox, CommandSpec(command="head -c 20000000 /dev/zero", timeout=60))
    await ended(engine, sandbox, command)
    offset = 0
    while (piece := await engine.read_file(sandbox, engine.output_path(command), offset, 8 << 20)).data:
        assert len(piece.data) <= 8 << 20
        offset += len(piece.data)
    assert offset == piece.size == 20_000_000


@pytest.mark.parametrize(
    ("name", "expected"), [("KILL", 9), ("TERM", 15), ("SEGV", 11), ("HUP", 1), ("USR1", 10), ("ABRT", 6)]
)
async def test_a_killed_command_says_by_which_signal(make: Make, name: str, expected: int) -> None:
    engine = make()
    made = await engine.create_sandbox(SPEC)
    await until(lambda: answers(engine, made.id))
    command = await engine.submit(made.id, CommandSpec(command=f"kill -{name} $$", timeout=60))
    status = await ended(engine, made.id, command)
    assert (status.exit_code, status.signal) == (-1, expected)
    await engine.delete_sandbox(made.id)


async def test_a_timeout_looks_like_a_kill(engine: OpenSandboxEngine, sandbox: str) -> None:
    command = await engine.submit(sandbox, CommandSpec(command="echo a; sleep 600", timeout=1))
    status = await ended(engine, sandbox, command)
    assert status.signal == 9
    assert status.started_at is not None
    assert status.finished_at is not None
    assert 0.9 < status.finished_at - status.started_at < PATIENCE
    assert (await engine.read_file(sandbox, engine.output_path(command), 0, 10)).data == b"a\n"


async def test_an_interrupt_and_its_refusals(engine: OpenSandboxEngine, sandbox: str) -> None:
    command = await engine.submit(sandbox, CommandSpec(command="sleep 600", timeout=600))
    await until(lambda: engine.status(sandbox, command))
    await engine.interrupt(sandbox, command)
    assert (await ended(engine, sandbox, command)).signal == 15
    with pytest.raises(CommandNotRunning):
        await engine.interrupt(sandbox, command)
    with pytest.raises(CommandNotRunning):
        await engine.interrupt(sandbox, "feedfacefeedfacefeedfacefeedface")
    with pytest.raises(CommandMissing):
        await engine.status(sandbox, "feedfacefeedfacefeedfacefeedface")
    for odd in ("..", "a/b", ""):
        with pytest.raises(CommandMissing):
            await engine.status(sandbox, odd)


async def test_what_never_started_is_said_to(engine: OpenSandboxEngine, sandbox: str) -> None:
    with pytest.raises(Refused) as caught:
        await engine.submit(sandbox, CommandSpec(command="true", timeout=5, cwd="/no/such/place"))
    assert caught.value.code == "INVALID_REQUEST_BODY"
    with pytest.raises(Refused):
        await engine.submit(sandbox, CommandSpec(command="", timeout=5))
    with pytest.raises(Refused):
        await engine.submit(sandbox, CommandSpec(command="echo \ud800", timeout=5))
    for command in ("true # " + "x" * 200_000, "echo a\0b"):
        with pytest.raises(StartFailed):
            await engine.submit(sandbox, CommandSpec(command=command, timeout=5))
        with pytest.raises(StartFailed):
            await events(engine, sandbox, command)


# -- streams


async def events(engine: Engine, sandbox: str, command: str, timeout: float = 30) -> list[CommandEvent]:
    spec = CommandSpec(command=command, timeout=timeout)
    return [each async for each in engine.stream(sandbox, spec, silence=PATIENCE)]


async def test_a_stream_ends_with_the_exit(engine: OpenSandboxEngine, sandbox: str) -> None:
    command = "echo a; echo; echo b >&2; exit 3"
    found = await before_the_stream_ends(lambda: events(engine, sandbox, command))
    found = [each for each in found if each.type != "ping"]
    assert found[0].type == "init"
    assert re.fullmatch("[0-9a-f]{32}", found[0].text)
    assert [each.text for each in found if each.type == "stdout"] == ["a", "\n"]
    assert [each.text for each in found if each.type == "stderr"] == ["b"]
    assert (found[-1].type, found[-1].exit_code) == ("exit", 3)
    status = await ended(engine, sandbox, found[0].text)
    assert status.exit_code == 3
    for stream, text in (("stdout", b"a\n\n"), ("stderr", b"b\n")):
        path = engine.output_path(found[0].text, stream)  # type: ignore[arg-type]
        assert (await engine.read_file(sandbox, path, 0, 100)).data == text


async def test_a_stream_completes(engine: OpenSandboxEngine, sandbox: str) -> None:
    found = await events(engine, sandbox, "true")
    assert (found[-1].type, found[-1].exit_code) == ("complete", 0)


async def test_a_stream_of_a_killed_command_says_so(engine: OpenSandboxEngine, sandbox: str) -> None:
    found = await events(engine, sandbox, "sleep 600", timeout=0.3)
    assert (found[-1].exit_code, found[-1].text) == (-1, "signal: killed")


async def test_output_comes_as_it_is_printed(engine: OpenSandboxEngine, sandbox: str) -> None:
    spec = CommandSpec(command="for i in 1 2 3; do echo $i; until [ -e $i ]; do sleep 0.05; done; done", timeout=60)
    seen = []
    async for event in engine.stream(sandbox, spec, silence=PATIENCE):
        if event.type == "stdout":
            seen.append(event.text)
            await engine.run_short(sandbox, f"touch {event.text}", timeout=60)  # only now can it go on
    assert seen == ["1", "2", "3"]


async def test_a_reader_that_leaves_does_not_stop_the_command(engine: OpenSandboxEngine, sandbox: str) -> None:
    spec = CommandSpec(command="echo a; sleep 0.5; exit 4", timeout=30)
    stream = engine.stream(sandbox, spec, silence=PATIENCE)
    command = (await anext(stream)).text
    await stream.aclose()
    assert (await ended(engine, sandbox, command)).exit_code == 4


async def test_silence_is_unclear_and_the_id_is_kept(make: Make) -> None:
    engine = make("never")
    made = await engine.create_sandbox(SPEC)
    await until(lambda: answers(engine, made.id))
    stream = engine.stream(made.id, CommandSpec(command="sleep 600", timeout=3600), silence=2)
    assert (await anext(stream)).type == "init"
    with pytest.raises(Unclear) as caught:
        assert [each async for each in stream if each.type != "ping"] == []
    assert caught.value.command is not None
    await engine.delete_sandbox(made.id)


async def test_small_commands(engine: OpenSandboxEngine, sandbox: str) -> None:
    result = await engine.run_short(sandbox, "echo a; echo; echo b; echo no >&2; exit 4", timeout=60)
    assert (result.exit_code, result.stdout) == (4, "a\n\nb")
    assert (await engine.run_short(sandbox, "kill -9 $$", timeout=60)).exit_code == 137
    assert (await engine.run_short(sandbox, "sleep 600", timeout=0.5)).exit_code == 137
    long = await engine.run_short(sandbox, "head -c 200000 /dev/zero | tr '\\0' x | fold -w 100", timeout=60)
    assert len(long.stdout) == 65536
    assert long.exit_code == 0


# -- trouble


async def test_a_dead_daemon(engine: OpenSandboxEngine, sandbox: str, engine_url: str) -> None:
    command = await engine.submit(sandbox, CommandSpec(command="sleep 600", timeout=600))
    await order(engine_url, f"sandboxes/{sandbox}/execd", {"action": "kill"})
    assert not await answers(engine, sandbox)
    for call in (engine.status(sandbox, command), engine.submit(sandbox, CommandSpec(command="true", timeout=5))):
        with pytest.raises((Unclear, NotReached)):
            await call
    await order(engine_url, f"sandboxes/{sandbox}/execd", {"action": "start"})
    await until(lambda: answers(engine, sandbox))
    with pytest.raises(CommandMissing):
        await engine.status(sandbox, command)


@pytest.mark.parametrize(
    ("reply", "known"), [("drop_before", False), ("cut_before_init", False), ("cut_after_init", True)]
)
async def test_a_lost_reply_is_unclear_and_nothing_is_sent_again(
    engine: OpenSandboxEngine, sandbox: str, engine_url: str, reply: str, known: bool
) -> None:
    await order(engine_url, "faults", {"submit_reply": reply})
    with pytest.raises(Unclear) as caught:
        await engine.submit(sandbox, CommandSpec(command="echo run >> runs; sleep 1", timeout=60))
    assert (caught.value.command is not None) == known
    if reply != "drop_before":
        await until(lambda: ran_once(engine, sandbox))
    assert await ran_once(engine, sandbox) == (reply != "drop_before")


async def ran_once(engine: Engine, sandbox: str) -> bool:
    return (await engine.run_short(sandbox, "cat runs 2>/dev/null", timeout=60)).stdout == "run"


async def test_a_create_whose_reply_is_lost_is_sent_once(make: Make, engine_url: str) -> None:
    engine = make()
    await order(engine_url, "faults", {"create_reply": "drop"})
    with pytest.raises(Unclear):
        await engine.create_sandbox(variant(metadata={"lost": "1"}))
    found = await engine.list_sandboxes({"lost": "1"})
    assert len(found.items) == 1
    await engine.delete_sandbox(found.items[0].id)


async def test_an_engine_that_is_not_there(make: Make) -> None:
    engine = OpenSandboxEngine("http://127.0.0.1:9", api_key="k", proxy="auto")
    for call in (engine.create_sandbox(SPEC), engine.get_sandbox("a"), engine.ping("a"), engine.check()):
        with pytest.raises(NotReached):
            await call
    await engine.close()


async def test_many_submits_do_not_pile_up_connections(make: Make) -> None:
    engine = make("never", limit=64)
    made = await engine.create_sandbox(SPEC)
    await until(lambda: answers(engine, made.id))

    async def some() -> None:
        for _ in range(15):
            await engine.submit(made.id, CommandSpec(command="true", timeout=5))

    await asyncio.gather(*(some() for _ in range(10)))
    assert len(engine._transport._draining) <= 32
    await until(lambda: not engine._transport._draining)
    assert not engine._transport._single.in_use
    await engine.delete_sandbox(made.id)


async def test_a_daemons_own_environment_is_read_by_lines(engine: OpenSandboxEngine) -> None:
    env = {"BASH_ENV": "/a b\nc", "EMPTY": "", "BASH_FUNC_f%%": "() {  echo ž\n}"}
    info = await engine.create_sandbox(variant(env=env))
    await until(lambda: answers(engine, info.id))
    found = await engine.read_lines(info.id, startup.ENVIRONMENT, 1 << 20)
    assert found is not None
    assert env.items() <= startup.of_daemon(found).items()
    assert await engine.read_lines(info.id, startup.ENVIRONMENT, 10) is None
    with pytest.raises(Unclear):  # "seeker can't seek"
        await engine.read_file(info.id, startup.ENVIRONMENT, 0, 100)
    with pytest.raises(FileMissing):
        await engine.read_lines(info.id, "/tmp/nosuch", 10)
    await engine.delete_sandbox(info.id)


async def test_a_daemon_adds_the_variables_of_its_file_to_every_command(engine: OpenSandboxEngine) -> None:
    path = f"/tmp/oncebox-test-{os.urandom(8).hex()}"
    info = await engine.create_sandbox(variant(env={"EXECD_ENVS": path, "A": "1", "B": "1"}))
    await until(lambda: answers(engine, info.id))
    text = "# B=3\nB=2\n C=$A${B}x \nD=3\nodd\n"
    await engine.run_short(info.id, f"printf '{text}' >{path}", timeout=10)
    shown = await engine.run_short(info.id, f'echo "$A $B $C $D"; rm {path}', timeout=10, env={"D": "4"})
    assert shown.stdout == "1 2 11x 4"
    await engine.delete_sandbox(info.id)


async def test_a_small_commands_environment_is_sent_along(engine: OpenSandboxEngine, sandbox: str) -> None:
    assert (await engine.run_short(sandbox, 'echo "$A"', timeout=10, env={"A": "b"})).stdout == "b"
