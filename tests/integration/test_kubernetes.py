"""What an engine on Kubernetes answers otherwise, and what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from service import errors
from service.core.app import Core
from service.core.jobs import trouble
from service.engine.transport import Deadline
from service.messages import CreateSandbox, JobOutput, JobState, Reason, SandboxState
from service.ports.engine import EngineError
from tests.integration.core_rig import Rig, eventually, execute, follow, local_engine, rig, submit
from tests.support.redis_server import RedisServer
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.integration

RESTARTED = (Reason.CONTAINER_RESTARTED, Reason.EXECD_RESTARTED)
"""The second where sandboxes are plain processes, whose first one is the machine's."""


async def answer_creates(here: Rig, status: int, code: str, message: str) -> None:
    body = json.dumps({"code": code, "message": message})
    fault: dict[str, Any] = {"create_status": status, "create_body": body, "create_content_type": "application/json"}
    await here.dev("faults", fault)


async def created(here: Rig) -> int:
    return int((await here.dev("stats"))["create"])


async def test_an_image_that_can_not_be_pulled_is_refused_at_once_by_its_name(here: Rig) -> None:
    core = await here.replica()
    await answer_creates(here, 500, "KUBERNETES::POD_FAILED", "Sandbox x failed: primary reason=ErrImagePull")
    with pytest.raises(errors.EngineRejected, match=r"image nowhere:1: .*ErrImagePull") as refused:
        await core.sandboxes.create("default", CreateSandbox(image="nowhere:1"), "image")
    assert not refused.value.retryable


async def test_a_sandbox_that_did_not_start_in_time_is_taken_back_and_may_be_asked_for_again(here: Rig) -> None:
    core = await here.replica()
    await answer_creates(here, 504, "KUBERNETES::POD_READY_TIMEOUT", "Timeout waiting. Last state: Pending")
    with pytest.raises(errors.EngineUnavailable, match="has removed it: Timeout waiting") as refused:
        await core.sandboxes.create("default", CreateSandbox(), "late")
    assert refused.value.retryable
    assert refused.value.retry_after
    before = await created(here)
    again = await core.sandboxes.create("default", CreateSandbox(), "late")
    assert again.value.ready
    assert await created(here) == before + 1


async def test_a_cluster_that_was_not_reached_made_nothing(here: Rig) -> None:
    core = await here.replica()
    refused_there = (
        "Failed to create sandbox: Max retries exceeded (Caused by NewConnectionError('Connection refused'))"
    )
    await answer_creates(here, 500, "KUBERNETES::API_ERROR", refused_there)
    with pytest.raises(errors.EngineUnavailable) as refused:
        await core.sandboxes.create("default", CreateSandbox(), "refused")
    assert refused.value.retryable
    assert (await core.sandboxes.create("default", CreateSandbox(), "refused")).value.ready


async def test_dollars_are_refused_while_nobody_knows_who_reads_them(here: Rig) -> None:
    core = await here.replica()
    body = json.dumps({"code": "ELSEWHERE::SANDBOX_NOT_FOUND", "message": "no"})
    fault = {"get_status": 404, "get_body": body, "get_content_type": "application/json"}
    await here.dev("faults", fault)
    with pytest.raises(errors.InvalidRequest) as refused:
        await core.sandboxes.create("default", CreateSandbox(env={"A": "1", "B": "a$(X)"}), "dollars")
    assert [error.field for error in refused.value.errors] == ["env.B"]
    assert (await core.sandboxes.create("default", CreateSandbox(env={"A": "1", "B": "a$(X)"}), "dollars")).value.ready


# -- on an engine that behaves as that runtime does


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL and root of an engine whose containers come back in their pods."""
    root = str(tmp_path_factory.mktemp("engine"))
    options = ("--like", "kubernetes", "--ready-timeout", "1.5", "--restart-policy", "Always")
    with local_engine(root, *options) as url:
        yield url, root


@pytest.fixture
async def pods(cluster: tuple[str, str], redis_server: RedisServer) -> AsyncIterator[Rig]:
    url, root = cluster
    async with rig(url, redis_server.url, root) as built:
        yield built


async def to_pod(pods: Rig, box: str, action: str, **more: Any) -> None:
    await pods.dev(f"sandboxes/{box}/pod", {"action": action, **more})


async def in_state(core: Core, box: str, state: SandboxState) -> None:
    async def reached() -> bool:
        return (await core.engine.get_sandbox(box)).state is state

    await eventually(reached)


async def named(core: Core, key: str) -> list[str]:
    """The sandboxes with a label at the engine."""
    return [each.id for each in (await core.engine.list_sandboxes({"key": key})).items if each.metadata["key"] == key]


async def failed_for_good(pods: Rig, core: Core, key: str) -> str:
    """A sandbox that the engine calls failed for ever, while its daemon answers."""
    made = await core.sandboxes.create("default", CreateSandbox(metadata={"key": key}), key)
    box = made.value.sandbox_id
    for state in (SandboxState.RUNNING, SandboxState.FAILED):
        await to_pod(pods, box, "kill")
        await in_state(core, box, SandboxState.PENDING)
        await in_state(core, box, state)
    return box


async def test_a_failed_sandbox_whose_daemon_answers_is_the_one_of_its_key_and_runs_what_it_is_sent(pods: Rig) -> None:
    core = await pods.replica()
    box = await failed_for_good(pods, core, "living")
    again = await core.sandboxes.create("default", CreateSandbox(metadata={"key": "living"}), "living")
    assert (again.value.sandbox_id, again.value.state, again.value.ready) == (box, SandboxState.FAILED, False)
    assert await named(core, "living") == [box]
    assert await execute(core, box, "echo on") == "on\n"
    done, text = await follow(core, await submit(core, box, "sleep 1; echo ended"))
    assert (done.state, text) == (JobState.EXITED, "ended\n")


async def test_a_failed_sandbox_whose_port_refuses_is_ended_before_its_key_makes_another(pods: Rig) -> None:
    core = await pods.replica()
    box = await failed_for_good(pods, core, "dead")
    await pods.dev(f"sandboxes/{box}/execd", {"action": "kill"})
    again = await core.sandboxes.create("default", CreateSandbox(metadata={"key": "dead"}), "dead")
    assert again.value.ready
    assert again.value.sandbox_id != box
    assert await named(core, "dead") == [again.value.sandbox_id]


async def test_a_failed_sandbox_that_lives_is_found_again_after_redis_lost_its_data(
    pods: Rig, redis_server: RedisServer
) -> None:
    core = await pods.replica()
    box = await failed_for_good(pods, core, "forgotten")
    with redis_server.client() as client:
        client.flushdb()
    again = await core.sandboxes.create("default", CreateSandbox(metadata={"key": "forgotten"}), "forgotten")
    assert again.value.sandbox_id == box
    assert await named(core, "forgotten") == [box]


async def test_what_ran_in_a_pod_that_is_made_anew_is_lost_and_its_window_answers_alike(pods: Rig) -> None:
    core = await pods.replica()
    box = await pods.sandbox(core)
    job = await submit(core, box, "sleep 300", key="job", timeout=600)
    await in_job_state(core, job, JobState.RUNNING)
    await to_pod(pods, box, "delete", seconds=4)
    refused: list[errors.OnceboxError] = []
    while (await core.engine.get_sandbox(box)).state is not SandboxState.RUNNING or not refused:
        try:
            await submit(core, box, "echo never")
        except errors.OnceboxError as error:
            refused.append(error)
        await asyncio.sleep(0.2)
    assert {(type(each), each.retryable) for each in refused} == {(errors.EngineUnavailable, True)}
    done, _ = await follow(core, job)
    assert (done.state, done.reason in RESTARTED) == (JobState.LOST, True)
    assert await submit(core, box, "sleep 300", key="job", timeout=600) == job, "it is not run again"
    await answers(core, box)
    assert await execute(core, box, "echo anew") == "anew\n"


async def in_job_state(core: Core, job: str, state: JobState) -> None:
    async def reached() -> bool:
        return (await core.jobs.get("default", job)).whole().state is state

    await eventually(reached)


async def answers(core: Core, box: str) -> None:
    async def reached() -> bool:
        with contextlib.suppress(EngineError):
            await core.engine.ping(box)
            return True
        return False

    await eventually(reached)


@pytest.mark.parametrize("trouble_of", ["evicted", "nobody starts it"])
async def test_a_job_whose_pod_never_comes_back_is_lost_after_minutes_of_refusals_not_after_its_four_hours(
    pods: Rig, monkeypatch: pytest.MonkeyPatch, trouble_of: str
) -> None:
    monkeypatch.setattr(trouble, "REFUSED_LIMIT", 2.0)
    core = await pods.replica()
    box = await pods.sandbox(core, timeout=86_400)
    job = await submit(core, box, "sleep 14000", timeout=14_400)
    await in_job_state(core, job, JobState.RUNNING)
    if trouble_of == "evicted":
        await to_pod(pods, box, "evict")
    else:
        await to_pod(pods, box, "delete", seconds=3600)
    done, _ = await follow(core, job)
    assert (done.state, done.reason) == (JobState.LOST, Reason.ENGINE_UNREACHABLE)
    with pytest.raises(errors.EngineUnavailable) as refused:
        await submit(core, box, "echo never")
    assert refused.value.retryable


async def test_a_job_on_a_node_that_does_not_report_goes_on(pods: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trouble, "REFUSED_LIMIT", 0.5)
    core = await pods.replica()
    box = await pods.sandbox(core)
    await to_pod(pods, box, "node", reports=False)
    await in_state(core, box, SandboxState.PENDING)
    done, text = await follow(core, await submit(core, box, "sleep 2; echo on"))
    assert (done.state, text) == (JobState.EXITED, "on\n")


async def test_a_container_that_comes_back_takes_its_jobs_with_it_and_no_sandbox(
    pods: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = await pods.replica()
    box = await pods.sandbox(core)
    job = await submit(core, box, "sleep 300", timeout=600)
    await in_job_state(core, job, JobState.RUNNING)
    await to_pod(pods, box, "kill")
    done, _ = await follow(core, job)
    assert (done.state, done.reason in RESTARTED) == (JobState.LOST, True)
    assert await execute(core, box, "echo on") == "on\n"


async def test_a_pause_that_is_taken_and_not_carried_out_is_said_so(pods: Rig) -> None:
    core = await pods.replica()
    box = await pods.sandbox(core)
    with pytest.raises(errors.EngineRejected, match="registry for snapshots"):
        await core.sandboxes.pause("default", box)
    assert await execute(core, box, "echo on") == "on\n"


async def test_a_sandbox_that_could_not_be_taken_back_is_the_one_of_its_key(pods: Rig) -> None:
    core = await pods.replica()
    await pods.dev("cluster", {"keeps": 1})
    late = CreateSandbox(entrypoint=["true"], metadata={"key": "late"}, wait_ready=0)
    made = await core.sandboxes.create("default", late, "late")
    assert await named(core, "late") == [made.value.sandbox_id]
    assert (await core.sandboxes.create("default", late, "late")).value.sandbox_id == made.value.sandbox_id


@pytest.mark.parametrize("request_", [{"entrypoint": ["true"]}, {"workspace_owner": "alice"}])
async def test_what_does_not_start_is_said_with_its_cause_and_leaves_nothing(pods: Rig, request_: Any) -> None:
    core = await pods.replica(volume="pvc:misspelt")
    asked = CreateSandbox(metadata={"key": "nothing"}, **request_)
    with pytest.raises(errors.EngineUnavailable, match="Last state: Pending") as refused:
        await core.sandboxes.create("default", asked, f"nothing {request_}")
    assert refused.value.retryable
    assert await named(core, "nothing") == []


async def test_dollars_arrive_as_they_were_given(pods: Rig) -> None:
    core = await pods.replica()
    env = {"A": "x", "B": "$(A)", "C": "a$$b", "D": "$A ${A} $", "E": "$(NOBODY) $$(A)"}
    said = "test '$$' = \"$(printf '\\44\\44')\" && touch /tmp/given-$B_; sleep infinity"
    box = await pods.sandbox(core, env=env, entrypoint=["sh", "-c", said])
    for name, value in env.items():
        assert await execute(core, box, f'printf %s "${name}"') == value


async def test_an_api_server_that_hangs_holds_up_no_call_for_longer_than_its_deadline_and_no_recorded_result(
    pods: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = await pods.replica()
    box = await pods.sandbox(core)
    done, _ = await follow(core, await submit(core, box, "echo kept"))
    kinds = ("get", "list", "endpoint", "create", "delete", "renew")
    await pods.dev("faults", {**{f"{kind}_delay": 3600 for kind in kinds}, "count": 100})
    for deadline in ("GET", "LIST", "CREATE", "DELETE", "RENEW", "ENDPOINT"):
        monkeypatch.setattr(f"service.engine.lifecycle.{deadline}", Deadline(total=0.5))
    async with asyncio.timeout(PATIENCE):
        page = (await core.jobs.get("default", done.command_id)).whole()
        assert isinstance(page, JobOutput)
        assert (page.state, page.output) == (JobState.EXITED, "kept\n")
        with pytest.raises(errors.EngineUnavailable):
            await core.sandboxes.get("default", box)
        with pytest.raises(errors.EngineUnavailable):
            await core.sandboxes.delete("default", box)
        with pytest.raises(errors.OutcomeUnknown):
            await core.sandboxes.create("default", CreateSandbox(), "hangs")
