"""Sandboxes on a real engine: made once, shown, renewed, paused and deleted; workspaces that don't meet."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from service.tenants import key_digest
from tests.real_engine.engine_rig import RealRig

pytestmark = [pytest.mark.acceptance, pytest.mark.integration]

ALICE, BOB = "obx_alice", "obx_bob"


@pytest.mark.parametrize("mode", ["auto", "always"])
async def test_twenty_at_once_with_one_key_make_one_sandbox(real: RealRig, mode: str) -> None:
    await real.start_on(mode=mode)
    key = secrets.token_hex(8)
    # Not every one of them waits long enough for a slow create: 409 tells those to come again.
    answers = await asyncio.gather(
        *(real.create(key=key, replica=number % 2, metadata={"t": key}) for number in range(20))
    )
    while any(answer.code == "IDEMPOTENCY_IN_PROGRESS" for answer in answers):
        again = [real.create(key=key, replica=number % 2, metadata={"t": key}) for number in range(20)]
        answers = await asyncio.gather(*again)
    assert {answer.status for answer in answers} == {201}, answers
    assert len({answer.body["sandbox_id"] for answer in answers}) == 1
    assert all(answer.body["ready"] for answer in answers), answers
    assert answers[0].body["metadata"] == {"t": key}
    listed = (await real.at_engine("GET", f"/v1/sandboxes?metadata=t%3D{key}")).body["items"]
    assert len(listed) == 1


async def test_a_sandbox_is_shown_listed_renewed_paused_resumed_and_deleted(real: RealRig) -> None:
    await real.start_on()
    first, second = real.urls
    mark = secrets.token_hex(8)
    sandbox_id = await real.ready_sandbox(metadata={"mark": mark}, env={"GREETING": "hello"})
    one = f"/v1/sandboxes/{sandbox_id}"

    shown = (await real.caller.send("GET", second + one)).body
    assert (shown["state"], shown["ready"], shown["image"]) == ("running", True, real.real.image)
    assert shown["resources"] == {"cpu": "1", "memory": "1Gi"}
    found = (await real.caller.send("GET", f"{second}/v1/sandboxes?metadata=mark%3D{mark}&state=running")).body
    assert [each["sandbox_id"] for each in found["items"]] == [sandbox_id]
    assert (await real.short(sandbox_id, "echo $GREETING"))["stdout"] == "hello\n"

    renewed = await real.caller.send("POST", f"{second}{one}/renew", json={"timeout": 1800})
    assert renewed.status == 200
    assert renewed.body["expires_at"] > shown["expires_at"]

    paused = await real.caller.send("POST", f"{first}{one}/pause", json={})
    if paused.status == 202:
        await pause_and_resume(real, sandbox_id)
    else:
        assert (paused.status, paused.code) == (422, "ENGINE_REJECTED"), "on Kubernetes, without a registry"
    assert (await real.short(sandbox_id, "echo back"))["stdout"] == "back\n"

    for url in real.urls:
        assert (await real.caller.send("DELETE", url + one)).status == 204
        assert (await real.caller.send("GET", url + one)).status == 404


async def pause_and_resume(real: RealRig, sandbox_id: str) -> None:
    """Of a sandbox whose pause was taken: on Kubernetes it takes some seconds until it is there."""
    first, second = real.urls
    one = f"/v1/sandboxes/{sandbox_id}"

    async def state() -> str:
        return str((await real.caller.send("GET", second + one)).body["state"])

    async with asyncio.timeout(90):
        while await state() != "paused":
            await asyncio.sleep(0.5)
    assert (await real.caller.send("POST", f"{first}{one}/pause", json={})).status == 202
    refused = await real.caller.submit(second, sandbox_id, "echo no", key=None)
    assert (refused.status, refused.code) == (409, "SANDBOX_NOT_RUNNING")
    for _ in range(2):
        assert (await real.caller.send("POST", f"{second}{one}/resume", json={})).status == 202
    async with asyncio.timeout(90):
        while await state() != "running":
            await asyncio.sleep(0.5)


async def test_the_engines_refusals_are_the_callers_to_read(real: RealRig) -> None:
    await real.start_on()
    absent = await real.create(image="oncebox.invalid/absent:none", key=secrets.token_hex(8))
    assert (absent.status, absent.code) == (422, "ENGINE_REJECTED"), absent
    body: dict[str, Any] = {"key": secrets.token_hex(8), "entrypoint": ["/no/such/program"], "wait_ready": 15}
    while (silent := await real.create(**body)).code == "IDEMPOTENCY_IN_PROGRESS":
        await asyncio.sleep(1)  # on Kubernetes a create is taken back after a minute
    if silent.status == 503:
        assert silent.body["retryable"]
        assert "has removed it" in silent.body["detail"]
        return
    assert silent.status == 201
    assert not silent.body["ready"]
    shown = await real.caller.send("GET", f"{real.urls[1]}/v1/sandboxes/{silent.body['sandbox_id']}")
    assert shown.body["state"] in ("failed", "terminated"), shown


@pytest.mark.usefixtures("_volume")
@pytest.mark.parametrize("how", ["two tenants", "two owners"])
async def test_alice_and_bob_with_one_key_never_meet(real: RealRig, tmp_path: Path, how: str) -> None:
    """The attack of the design: the same key on two replicas, of two who don't know of each other."""
    mark = secrets.token_hex(4)
    names = {"alice": f"alice-{mark}", "bob": f"bob-{mark}"}
    env, keys = {}, {"alice": "", "bob": ""}
    if how == "two tenants":
        path = tmp_path / "tenants.toml"
        tables = (f'[{names[who]}]\nkeys = ["{key_digest(k)}"]\n' for who, k in (("alice", ALICE), ("bob", BOB)))
        path.write_text("".join(tables))
        env, keys = {"ONCEBOX_TENANTS": str(path), "ONCEBOX_SECRET": "s3cret"}, {"alice": ALICE, "bob": BOB}
    await real.start_on(env=env)
    places = {"alice": real.urls[0], "bob": real.urls[1]}

    async def make(who: str) -> str:
        replica = list(places).index(who)
        answer = await real.create(key="task-1", replica=replica, api_key=keys[who], workspace_owner=names[who])
        assert answer.status == 201, answer
        assert answer.body["ready"], answer
        assert answer.body["workspace_owner"] == names[who]
        return str(answer.body["sandbox_id"])

    async def run(who: str, sandbox_id: str, command: str) -> str:
        headers = {"Authorization": f"Bearer {keys[who]}"} if keys[who] else {}
        body = {"sandbox_id": sandbox_id, "command": command}
        answer = await real.caller.send("POST", f"{places[who]}/v1/exec", json=body, headers=headers)
        assert answer.status == 200, answer
        return str(answer.body["stdout"])

    made = dict(zip(names, await asyncio.gather(*map(make, names)), strict=True))
    assert made["alice"] != made["bob"]
    await run("alice", made["alice"], "echo alice >/workspace/mine; ls /root/.claude /root/.codex /root/.gemini")
    assert await run("bob", made["bob"], "ls -A /workspace; cat /workspace/mine || :") == ""
    for who in names:
        assert await make(who) == made[who], "each retry gets its own"
    assert await run("alice", await make("alice"), "cat /workspace/mine") == "alice\n"
    if how == "two tenants":
        body = {"sandbox_id": made["alice"], "command": "cat /workspace/mine"}
        answer = await real.caller.send(
            "POST", f"{places['bob']}/v1/exec", json=body, headers={"Authorization": f"Bearer {BOB}"}
        )
        assert (answer.status, answer.code) == (404, "SANDBOX_NOT_FOUND")
