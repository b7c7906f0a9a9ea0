"""What a command reads, whose rights it has, words instead of a text, and its two outputs apart; on real commands."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import secrets
from typing import Any

import pytest

from service import errors
from service.core import records
from service.core.app import Core
from service.core.claims import failpoints
from service.core.fence import scripts
from service.core.model import identity
from service.core.records import JobBody
from service.messages import Encoding, Exec, ExecJobOutput, JobOutput, JobState, Reason, Stream, SubmitJob
from service.ports.store import Record
from tests.integration.core_rig import Rig, eventually, execute, follow, submit
from tests.support.redis_server import RedisServer
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.integration

BINARY = bytes(range(256)) * 160
"""40 KiB: more than is kept beside a record."""


async def run(core: Core, box: str, key: str | None = None, **request: Any) -> tuple[JobOutput, str]:
    """A job at its end, and its output."""
    answer = await core.jobs.submit("default", SubmitJob(sandbox_id=box, **request), key)
    return await follow(core, answer.value.command_id)


async def stream_of(core: Core, id: str, stream: Stream) -> str:
    """All of one stream."""
    page, text = await follow(core, id, stream=stream)
    assert page.output_complete
    return text


async def left(core: Core, box: str, what: str = ".in.*") -> list[str]:
    """Files of a name in the fence directory."""
    found = await execute(core, box, f"cd {core.settings.fence_dir} && ls -d {what} 2>/dev/null || true")
    return found.split()


# -- stdin


@pytest.mark.parametrize("size", [0, 1, 33 * 1024, 900 * 1024])
async def test_a_job_and_an_exec_read_exactly_what_was_sent(core: Core, box: str, size: int) -> None:
    sent = secrets.token_hex(size)[:size]
    summed = hashlib.sha256(sent.encode()).hexdigest()
    page, text = await run(core, box, command="sha256sum; cat; echo rc $?", stdin=sent)
    assert (page.state, text) == (JobState.EXITED, f"{summed}  -\nrc 0\n")
    result = await core.execs.run("default", Exec(sandbox_id=box, command="sha256sum", stdin=sent), None)
    assert result.value.stdout == f"{summed}  -\n"


async def test_bytes_come_as_base64(core: Core, box: str) -> None:
    sent = base64.b64encode(BINARY).decode()
    _, text = await run(core, box, command="sha256sum", stdin=sent, stdin_encoding=Encoding.BASE64)
    assert text == f"{hashlib.sha256(BINARY).hexdigest()}  -\n"


async def test_a_file_of_the_sandbox_is_read(core: Core, box: str) -> None:
    await execute(core, box, "mkdir -p there && echo in the file >there/given")
    _, text = await run(core, box, command="cat", stdin_path="there/given")
    assert text == "in the file\n"


@pytest.mark.parametrize("kind", ["job", "exec"])
async def test_a_file_that_is_not_there_runs_nothing_and_a_retry_may(core: Core, box: str, kind: str) -> None:
    request: dict[str, Any] = {"sandbox_id": box, "command": "echo x >>count; cat", "stdin_path": "late"}

    async def ask() -> str:
        if kind == "exec":
            return (await core.execs.run("default", Exec(**request), "key")).value.command_id
        return (await core.jobs.submit("default", SubmitJob(**request), "key")).value.command_id

    with pytest.raises(errors.EngineRejected) as refused:
        await eventually_raises(ask)
    id = refused.value.command_id
    assert id is not None
    page = (await core.jobs.get("default", id)).whole()
    assert (page.state, page.reason) == (JobState.FAILED, Reason.STDIN_MISSING)
    assert await execute(core, box, "cat count 2>/dev/null || echo none") == "none\n"
    await execute(core, box, "echo come >late")
    await ask()
    await eventually(lambda: is_over(core, id))
    assert await execute(core, box, "cat count") == "x\n"


async def eventually_raises(ask: Any) -> None:
    """Where the first poll has not come before the answer, the same request tells."""
    for _ in range(100):
        await ask()
        await asyncio.sleep(0.05)


async def is_over(core: Core, id: str) -> bool:
    return (await core.jobs.get("default", id)).job.state.terminal


async def test_the_content_is_part_of_what_a_key_means_and_of_a_file_its_path(core: Core, box: str) -> None:
    first = SubmitJob(sandbox_id=box, command="cat", stdin="aé")
    answer = await core.jobs.submit("default", first, "key")
    same = SubmitJob(
        sandbox_id=box,
        command="cat",
        stdin=base64.b64encode("aé".encode()).decode(),
        stdin_encoding=Encoding.BASE64,
    )
    again = await core.jobs.submit("default", same, "key")
    assert (again.replayed, again.value.command_id) == (True, answer.value.command_id)
    others: list[dict[str, Any]] = [{"stdin": "b"}, {"stdin": ""}, {}, {"stdin_path": "/etc/hostname"}]
    for other in [*others, {"stdin": "aé", "user": "0"}]:
        with pytest.raises(errors.IdempotencyKeyReused):
            await core.jobs.submit("default", SubmitJob(sandbox_id=box, command="cat", **other), "key")


async def test_of_a_long_input_redis_has_the_hash_alone(core: Core, box: str) -> None:
    for size, kept in ((32 * 1024, True), (32 * 1024 + 1, False)):
        sent = secrets.token_hex(size)[:size]
        answer = await core.jobs.submit(
            "default", SubmitJob(sandbox_id=box, command="cat >/dev/null", stdin=sent), None
        )
        request = await core.store.request(answer.value.command_id)
        assert request is not None
        assert hashlib.sha256(sent.encode()).hexdigest().encode() in request
        assert (base64.b64encode(sent.encode()) in request) is kept


@pytest.mark.parametrize("size", [1, 40 * 1024])
async def test_the_next_attempt_of_another_replica_reads_the_same(
    core: Core, other: Core, box: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one met a void; the replica that finds it has never seen the request."""
    sent = secrets.token_hex(size)[:size]
    voids: list[str] = []

    async def void_once(point: str) -> None:
        """The claim is dispatched, and nothing is sent yet."""
        if point == failpoints.DISPATCHED and not voids:
            record = await core.store.get(next(iter(await core.store.active_of(box))))
            assert record is not None
            boot = records.job_body(record).boot
            assert boot is not None
            voids.append((await core.fences.void(box, records.token(record), boot)).outcome)

    async def leave(seen: Record, _: JobBody) -> tuple[Record, None]:
        return seen, None

    monkeypatch.setattr(failpoints, "reach", void_once)
    monkeypatch.setattr(core.dispatcher, "reopen", leave)  # so that the other one sends the next
    request = SubmitJob(sandbox_id=box, command="echo x >>count; sha256sum", stdin=sent)
    answer = await core.jobs.submit("default", request, None)
    assert voids == ["voided"]
    page, text = await follow(other, answer.value.command_id)
    assert (page.state, text) == (JobState.EXITED, f"{hashlib.sha256(sent.encode()).hexdigest()}  -\n")
    assert await execute(core, box, "cat count") == "x\n"


async def test_an_input_that_the_sandbox_can_not_hold_runs_nothing(
    core: Core, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.ports.engine import DiskFull

    async def full(*_: Any, **__: Any) -> None:
        raise DiskFull("no space left on device")

    monkeypatch.setattr(core.engine, "upload", full)
    with pytest.raises(errors.EngineUnavailable, match="could not hold"):
        await submit(core, box, "echo x >>count", stdin="a")
    assert await execute(core, box, "cat count 2>/dev/null || echo none") == "none\n"


async def test_where_no_fence_can_be_an_input_is_refused_and_a_file_is_read(here: Rig) -> None:
    core = await here.replica(fence_dir="/proc/no-mark")
    box = await here.sandbox(core)
    with pytest.raises((errors.EngineUnavailable, errors.EngineRejected)):
        await submit(core, box, "echo x >>count", stdin="a")
    assert await execute(core, box, "cat count 2>/dev/null || echo none; echo in >given") == "none\n"
    page, text = await run(core, box, command="cat", stdin_path="given")
    assert (page.fenced, text) == (False, "in\n")


# -- users


root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can switch users")


@root
@pytest.mark.parametrize("kind", ["job", "exec"])
async def test_a_command_has_the_rights_of_its_user(core: Core, box: str, kind: str) -> None:
    command = "id -u; id -g; echo $HOME; cat; [ -w / ] || echo refused"
    for user, shown in (("12345", "12345\n0\n/\n"), ("12345:23", "12345\n23\n/\n"), ("root", "0\n0\n/root\n")):
        request: dict[str, Any] = {"command": command, "user": user, "stdin": "read\n", "cwd": "/"}
        if kind == "exec":
            text = (await core.execs.run("default", Exec(sandbox_id=box, **request), None)).value.stdout
        else:
            text = (await run(core, box, **request))[1]
        assert text.startswith(f"{shown}read\n"), user
        assert user == "root" or text.endswith("refused\n")


@root
async def test_the_caller_s_own_home_counts(core: Core, box: str) -> None:
    _, text = await run(core, box, command="echo $HOME", user="12345", env={"HOME": "/mine"}, cwd="/")
    assert text == "/mine\n"


async def test_a_user_that_the_sandbox_does_not_have_is_named(core: Core, box: str) -> None:
    for user in ("nosuchuser", "a b", "1:2:3", "-x"):
        with pytest.raises(errors.InvalidRequest) as refused:
            await submit(core, box, "echo x >>count", "key", user=user)
        assert refused.value.errors[0].field == "user"
    assert await execute(core, box, "cat count 2>/dev/null || echo none") == "none\n"


async def test_where_the_daemon_may_not_switch_the_problem_names_the_user(
    core: Core, box: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from service.ports.engine import StartFailed

    async def refused(*_: Any) -> str:
        raise StartFailed("failed to start commands: fork/exec /usr/bin/bash: operation not permitted")

    monkeypatch.setattr(core.engine, "submit", refused)
    with pytest.raises(errors.InvalidRequest) as told:
        await submit(core, box, "true", user="12345")
    assert told.value.errors[0].field == "user"
    with pytest.raises(errors.EngineRejected):
        await submit(core, box, "true")


@root
async def test_a_user_who_can_not_reach_the_fences_is_told_at_once(core: Core, box: str) -> None:
    await execute(core, box, f"chmod 700 {core.settings.fence_dir}")
    id = await submit(core, box, "echo x", user="12345", cwd="/")
    page, text = await follow(core, id, seconds=20)
    assert (page.state, page.reason, text) == (JobState.FAILED, Reason.NO_FENCE, "")


@pytest.mark.parametrize("word", ["none", "input", "apart"])
async def test_a_job_that_removes_its_fence_and_says_that_nothing_ran_has_run(core: Core, box: str, word: str) -> None:
    """The wrapper's own last line stands where its fence was, so it is told as run, its output perhaps not."""
    find = f'd=$PWD; cd {core.settings.fence_dir} && f=$(grep -l "^pid=$PPID$" * | head -n 1) && rm "$f"'
    command = f'{find} && : >"$d/removed" && echo "oncebox-fence $f {word}"; exit 113'
    page, _ = await run(core, box, "wiped", command=command)
    assert (page.state, page.exit_code) == (JobState.EXITED, 113)
    assert await execute(core, box, "ls") == "removed\n"


# -- words


async def test_words_reach_their_program_unparsed(core: Core, box: str) -> None:
    words = ["printf", "<%s>", "a b", "*", "$HOME", "'", "", "\n"]
    page, text = await run(core, box, argv=words)
    assert text == "<a b><*><$HOME><'><><\n>"
    assert page.command == "printf '<%s>' 'a b' '*' '$HOME' ''\"'\"'' '' '\n'"
    result = await core.execs.run("default", Exec(sandbox_id=box, argv=words), None)
    assert result.value.stdout == text


async def test_a_program_that_is_not_there_or_can_not_be_executed(core: Core, box: str) -> None:
    await execute(core, box, "echo echo >plain")
    for program, code in (("nosuchprogram", 127), ("./plain", 126)):
        page, _ = await run(core, box, argv=[program])
        assert (page.state, page.exit_code) == (JobState.EXITED, code)


# -- streams apart

BOTH = "echo a; echo b >&2; echo c; printf 'd\\377' >&2"


async def test_streams_apart_are_read_and_recorded_one_by_one(here: Rig, core: Core, other: Core, box: str) -> None:
    id = await submit(core, box, BOTH, stderr="apart")
    assert await stream_of(core, id, "stdout") == "a\nc\n"
    assert await stream_of(other, id, "stderr") == "b\nd\ufffd"
    page = (await core.jobs.get("default", id, stream="stderr", encoding=Encoding.BASE64)).whole()
    assert isinstance(page, JobOutput)
    assert (page.streams, page.stream, page.output) == ("apart", "stderr", base64.b64encode(b"b\nd\xff").decode())
    await core.sandboxes.delete("default", box)
    assert await stream_of(other, id, "stdout") == "a\nc\n"
    assert await stream_of(core, id, "stderr") == "b\nd\ufffd"


async def test_which_stream_must_be_said_and_a_cursor_is_of_one(core: Core, box: str) -> None:
    apart, merged = await submit(core, box, BOTH, stderr="apart"), await submit(core, box, BOTH)
    page, _ = await follow(core, merged)
    assert (page.streams, page.stream) == ("merged", None)
    await stream_of(core, apart, "stdout")
    cursor = (await core.jobs.get("default", apart, stream="stdout", limit=1)).job.cursor
    for asked, field in (
        (core.jobs.get("default", apart), "stream"),
        (core.jobs.raw("default", apart, range=None), "stream"),
        (core.jobs.get("default", merged, stream="stdout"), "stream"),
        (core.jobs.raw("default", merged, range=None, stream="stderr"), "stream"),
        (core.jobs.get("default", apart, stream="stderr", cursor=cursor), "cursor"),
        (anext(core.jobs.events("default", apart, cursor=cursor)), "cursor"),
        (anext(core.jobs.events("default", merged, stream="stderr")), "stream"),
    ):
        with pytest.raises(errors.InvalidRequest) as refused:
            await asked
        assert refused.value.errors[0].field == field
    rest = (await core.jobs.get("default", apart, stream="stdout", cursor=cursor)).whole()
    assert isinstance(rest, JobOutput)
    assert rest.output == "\nc\n"


async def test_each_stream_has_its_ranges(core: Core, box: str) -> None:
    id = await submit(core, box, "seq 1000; seq 2000 >&2", stderr="apart")
    whole = {"stdout": await stream_of(core, id, "stdout"), "stderr": await stream_of(core, id, "stderr")}
    for stream in ("stdout", "stderr"):
        raw = await core.jobs.raw("default", id, range=(3, 12), stream=stream)
        assert b"".join([piece async for piece in raw.chunks]) == whole[stream].encode()[3:13]
        assert raw.size == len(whole[stream])


async def test_events_carry_both_streams_under_one_cursor(core: Core, other: Core, box: str) -> None:
    id = await submit(core, box, "echo a; echo b >&2; sleep 1; echo c; echo d >&2", stderr="apart")
    texts, cursor, taken = {"stdout": "", "stderr": ""}, None, 0
    ended = False
    while not ended:  # left after each event, and taken up elsewhere by the cursor
        core, other = other, core
        async for event in core.jobs.events("default", id, cursor=cursor):
            cursor, taken = event.id, taken + 1
            if event.kind == "output":
                texts[event.data.stream] += event.data.output  # type: ignore[union-attr, index]
            ended = event.kind == "end"
            break
    assert texts == {"stdout": "a\nc\n", "stderr": "b\nd\n"}
    assert core.jobs.is_end(cursor)
    alone = [event async for event in core.jobs.events("default", id, stream="stderr")]
    assert "".join(event.data.output for event in alone if event.kind == "output") == "b\nd\n"  # type: ignore[union-attr]


async def test_a_long_poll_returns_for_news_of_its_stream(core: Core, box: str) -> None:
    id = await submit(core, box, "sleep 1; echo late >&2; sleep 30", stderr="apart")
    await eventually(lambda: runs(core, id))
    page = (await core.jobs.get("default", id, stream="stderr")).whole()
    async with asyncio.timeout(PATIENCE):
        while isinstance(page, JobOutput) and not page.output:
            page = (await core.jobs.get("default", id, stream="stderr", cursor=page.cursor, wait=20)).whole()
    assert page.output == "late\n"  # type: ignore[union-attr]
    await core.jobs.cancel("default", id)


async def runs(core: Core, id: str) -> bool:
    return (await core.jobs.get("default", id, stream="stdout")).job.state is JobState.RUNNING


async def test_a_job_that_redis_forgot_still_knows_that_its_streams_are_apart(
    core: Core, box: str, redis_server: RedisServer
) -> None:
    id = await submit(core, box, BOTH, "key", stderr="apart")
    await stream_of(core, id, "stdout")
    with redis_server.client() as client:
        client.flushall()
    with pytest.raises(errors.InvalidRequest):
        await core.jobs.get("default", id)
    assert await stream_of(core, id, "stderr") == "b\nd\ufffd"
    assert await stream_of(core, id, "stdout") == "a\nc\n"


async def test_what_is_kept_of_each_stream_is_bounded(here: Rig) -> None:
    core = await here.replica(record_output=100)
    box = await here.sandbox(core)
    id = await submit(core, box, "seq 1000 >&2; echo short", stderr="apart")
    assert await stream_of(core, id, "stdout") == "short\n"
    printed = "".join(f"{n}\n" for n in range(1, 1001))
    await core.sandboxes.delete("default", box)
    assert (await follow(core, id, stream="stderr"))[1] == printed[-100:]


async def test_streams_are_never_merged_silently(core: Core, box: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where there is no /proc: the log's path is not to be had."""
    monkeypatch.setattr(scripts, "BEGIN", scripts.BEGIN.replace("readlink", "nosuchprogram"))
    page, text = await follow(
        core, await submit(core, box, "echo x >>count", stderr="apart"), seconds=20, stream="stdout"
    )
    assert (page.state, page.reason, text) == (JobState.FAILED, Reason.STDERR_NOT_APART, "")
    assert await execute(core, box, "cat count 2>/dev/null || echo none") == "none\n"


async def test_an_exec_reads_and_has_its_outputs_apart_as_ever(core: Core, box: str) -> None:
    result = (await core.execs.run("default", Exec(sandbox_id=box, command="cat; cat >&2", stdin="a"), None)).value
    shown = (await core.jobs.get("default", result.command_id)).whole()
    assert isinstance(shown, ExecJobOutput)
    assert (shown.streams, shown.stdout, shown.stderr) == ("apart", "a", "")


async def test_fences_outputs_and_inputs_are_cleaned_away(core: Core, box: str) -> None:
    id = await submit(core, box, BOTH, stderr="apart", stdin="x")
    await stream_of(core, id, "stdout")
    record = await core.store.get(id)
    assert record is not None
    body = records.job_body(record)
    assert body.log is not None
    assert len(await left(core, box)) == 1
    errors_log = body.log.removesuffix(".output") + ".stderr"
    token = identity.token_of(id, 1)
    await execute(core, box, f"cd {core.settings.fence_dir} && touch -d '30 days ago' .in.* {token}")
    await core.fences.clean(box, [token], age=3600)
    assert await left(core, box, f".in.* {token} {body.log} {errors_log}") == []
