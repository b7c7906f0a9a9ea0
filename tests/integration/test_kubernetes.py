"""What an engine on Kubernetes answers otherwise, and what becomes of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service import errors
from service.messages import CreateSandbox
from tests.integration.core_rig import Rig

pytestmark = pytest.mark.integration


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
