"""An accepted command is an answer at once only where no other request can have had its key: a Redis that was emptied
in between, and a sandbox that was found again, prove nothing.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from service import errors
from service.core import records
from service.core.app import Core
from service.messages import CreateSandbox
from service.ports.engine import SandboxInfo, SandboxSpec
from tests.integration.core_rig import Rig, eventually, submit
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.integration


async def test_redis_is_emptied_between_the_read_of_the_sandbox_and_the_claim_and_the_sandbox_is_found_again(
    core: Core, other: Core, box: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    surroundings = other.fences.surroundings
    first = 0

    async def slow(sandbox_id: str) -> Any:
        nonlocal first
        found = await surroundings(sandbox_id)
        if not first:
            first = 1
            await submit(core, box, "echo one; sleep 2", "key")
            with redis_server.client() as client:
                client.flushall()
            await core.sandboxes.get("default", box)
        return found

    monkeypatch.setattr(other.fences, "surroundings", slow)
    with pytest.raises(errors.IdempotencyKeyReused):
        await submit(other, box, "echo two", "key")


async def test_an_old_reading_of_a_sandbox_is_not_written_back_as_this_rediss_own(
    core: Core, other: Core, box: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit(core, box, "echo one; sleep 2", "key")
    known = await core.access.known("default", box)
    with redis_server.client() as client:
        client.flushall()
    await core.sandbox_records.amend(box, known, ready=False)
    raw = await core.store.get_sandbox(box)
    assert raw is not None
    assert records.sandbox_record(raw).found
    with pytest.raises(errors.IdempotencyKeyReused):
        await submit(other, box, "echo two", "key")


async def test_a_sandbox_whose_create_outlived_its_claim_does_not_prove_that_its_keys_are_new(
    here: Rig, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = await here.replica(lease=2.0, claim_wait=2.0)
    create = core.engine.create_sandbox
    made: list[str] = []

    async def emptied(spec: SandboxSpec) -> SandboxInfo:
        info = await create(spec)
        made.append(info.id)
        with redis_server.client() as client:
            client.flushall()
        return info

    monkeypatch.setattr(core.engine, "create_sandbox", emptied)
    with contextlib.suppress(errors.OnceboxError):
        await core.sandboxes.create("default", CreateSandbox(), None)

    async def noted() -> bool:
        raw = await core.store.get_sandbox(made[0])
        return raw is not None and records.sandbox_record(raw).found

    await eventually(noted)
