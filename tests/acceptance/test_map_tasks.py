"""A map over tasks: a sandbox each, killed and run again, in both halves of the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.client import AsyncClient, AsyncTaskRun, Client, CommandFailed, JobResult, TaskResult, TaskRun
from service.client.tasks import RESULT_LIMIT, Journal, TaskEnd, TaskNames
from tests.acceptance.http_rig import Replica
from tests.support.processes import Spawner

pytestmark = pytest.mark.acceptance

MapTasks = Callable[..., list[TaskResult[Any]]]


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    spawner = Spawner(tmp_path_factory.mktemp("map"))
    yield Replica(spawner)
    spawner.kill_all()


def in_threads(replica: Replica, function: Any, tasks: Any, **more: Any) -> list[TaskResult[Any]]:
    with Client(replica.url) as client:
        return list(client.map_tasks(function, tasks, **more))


def in_tasks(replica: Replica, function: Any, tasks: Any, **more: Any) -> list[TaskResult[Any]]:
    async def results() -> list[TaskResult[Any]]:
        async with AsyncClient(replica.url) as client:
            return [result async for result in client.map_tasks(function, tasks, **more)]

    return asyncio.run(results())


def doubled(run: TaskRun[int]) -> Any:
    first = run.run(f"echo {run.task}; cat /proc/sys/kernel/random/uuid", step="first", check=True)
    number, once = first.output.split()
    second = run.run(f"echo $(({number} * 2))", step="second", check=True)
    return {"doubled": int(second.output), "once": once, "sandbox": run.sandbox.id}


async def doubled_later(run: AsyncTaskRun[int]) -> Any:
    first = await run.run(f"echo {run.task}; cat /proc/sys/kernel/random/uuid", step="first", check=True)
    number, once = first.output.split()
    second = await run.run(f"echo $(({number} * 2))", step="second", check=True)
    return {"doubled": int(second.output), "once": once, "sandbox": run.sandbox.id}


@pytest.mark.parametrize(
    ("call", "function"), [(in_threads, doubled), (in_tasks, doubled_later)], ids=["sync", "async"]
)
@pytest.mark.parametrize("with_journal", [False, True], ids=["record", "journal"])
def test_each_task_is_worked_on_once(
    replica: Replica, call: MapTasks, function: Any, with_journal: bool, tmp_path: Path
) -> None:
    more: dict[str, Any] = {"key": f"once-{call.__name__}-{with_journal}", "concurrency": 3}
    if with_journal:
        more["journal"] = tmp_path / "journal"
    seen: list[tuple[int, int]] = []
    first = call(replica, function, range(7), **more, progress=lambda done, total: seen.append((done, total)))

    assert {each.task: each.unwrap()["doubled"] for each in first} == {n: 2 * n for n in range(7)}
    assert seen == [(n, 7) for n in range(1, 8)]
    again = call(replica, function, range(9), **more)
    assert {each.task for each in again if not each.replayed} == {7, 8}
    results = {each.task: each.result for each in again}
    assert [results[each.task] for each in first] == [each.result for each in first]
    for each in again:
        assert replica.ask("GET", f"/v1/sandboxes/{each.sandbox_id}").status == 404, "none is left"


@pytest.mark.parametrize("call", [in_threads, in_tasks], ids=["sync", "async"])
def test_a_command_or_several_are_a_function_too(replica: Replica, call: MapTasks) -> None:
    key = f"command-{call.__name__}"
    [one] = call(replica, "echo $GREETING; exit 3", ["a"], key=key, env={"GREETING": "hello"})
    assert isinstance(one.result, JobResult)
    assert (one.result.output, one.result.exit_code) == ("hello\n", 3)
    [again] = call(replica, "echo $GREETING; exit 3", ["a"], key=key, env={"GREETING": "hello"})
    assert again.replayed
    assert again.result == one.result
    [several] = call(replica, ["echo one", "exit 4", "echo two"], ["a"], key=f"{key}-s")
    assert (several.result.output, several.result.exit_code) == ("one\n", 4)


@pytest.mark.parametrize("call", [in_threads, in_tasks], ids=["sync", "async"])
def test_a_task_that_fails_stops_no_other_and_is_tried_anew(replica: Replica, call: MapTasks) -> None:
    key, broken = f"failing-{call.__name__}", True

    def function(run: Any) -> Any:
        if run.task == 1 and broken:
            raise LookupError("not here")
        if run.task == 2:
            return "x" * (RESULT_LIMIT + 1)
        if run.task == 3:
            return {1j}
        return run.sandbox.id

    found = {each.task: each for each in call(replica, function, range(5), key=key)}
    assert {task for task, each in found.items() if each.error is None} == {0, 4}
    assert isinstance(found[1].error, LookupError)
    assert isinstance(found[2].error, ValueError)
    assert isinstance(found[3].error, ValueError)
    with pytest.raises(LookupError):
        found[1].unwrap()
    listed = replica.ask("GET", "/v1/sandboxes?state=running").json()["items"]
    assert [each["metadata"] for each in listed] == [], "failed ones are deleted too"
    broken = False
    again = {each.task: each for each in call(replica, function, range(5), key=key)}
    assert (again[0].replayed, again[1].replayed) == (True, False)
    assert again[1].error is None


def test_a_command_that_never_ran_is_no_result(replica: Replica) -> None:
    def lose(run: TaskRun[str]) -> Any:
        job = run.submit("sleep 60", step="lost")
        run.sandbox.delete()
        return job.result(check=True).output

    [lost] = in_threads(replica, lose, ["a"], key="lost")
    assert isinstance(lost.error, CommandFailed)


@pytest.mark.parametrize("arguments", [{"concurrency": 0}, {"key": "x" * 201}, {"key": "ä"}])
def test_what_can_not_be_a_map_is_refused(replica: Replica, arguments: dict[str, Any]) -> None:
    with pytest.raises(Exception, match=r"key|concurrency|visible"):
        in_threads(replica, "true", ["a"], **{"key": "k", **arguments})
    with pytest.raises(ValueError, match="twice"):
        in_threads(replica, "true", ["a", "b", "a"], key="k")


def test_a_journal_that_a_crash_cut_short_is_read_and_gone_on_with(tmp_path: Path) -> None:
    path, names = tmp_path / "journal", TaskNames("map")
    journal = Journal(path, names)
    journal.note(TaskEnd(task="a", value=[1], sandbox_id="s"))
    with path.open("ab") as file:
        file.write(b'{"map": "')
    Journal(path, names).note(TaskEnd(task="b", value=None))
    read = Journal(path, names)
    assert read.end("a") == TaskEnd(task="a", value=[1], sandbox_id="s")
    assert read.end("b") == TaskEnd(task="b")
    assert Journal(path, TaskNames("other")).end("a") is None
