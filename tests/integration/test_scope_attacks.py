"""One key in two hands never meets: two tenants, two owners, two bodies; and what a caller writes forges nothing.

Each in one process, across two replicas, through adoption (Redis lost everything, the sandbox is found by its
labels), and past the sweeper.
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest

from service.core.model import identity
from tests.integration.tenants_rig import ALICE, BOB, RESERVED, Replica, TenantsRig

pytestmark = pytest.mark.integration

Way = Literal["one process", "two replicas", "adoption", "sweeper"]
WAYS: list[Way] = ["one process", "two replicas", "adoption", "sweeper"]
KEY = "task-17"
PRINTS_THEN_ENDS = "echo $$; sleep 1"
"""What it printed has been read, often, before it has ended."""


class Stage:
    """Who is asked first and who then, and what happens in between."""

    def __init__(self, way: Way, rig: TenantsRig, one: Replica, two: Replica) -> None:
        self.way, self.rig, self.first = way, rig, one
        self.then = one if way == "one process" else two

    async def between(self) -> None:
        if self.way == "adoption":
            await self.rig.flush()
        elif self.way == "sweeper":
            await self.sweep()

    async def sweep(self) -> None:
        """A round of the sweeper, to which every sandbox is old enough."""
        sweeper = self.then.core.sweeper
        for item in (await self.then.core.engine.list_sandboxes({})).items:
            assert not await sweeper.given_up(item, grace=-3600), item
        await sweeper.round()


@pytest.fixture(params=WAYS)
def stage(request: pytest.FixtureRequest, tenants: TenantsRig, one: Replica, two: Replica) -> Stage:
    return Stage(request.param, tenants, one, two)


async def create(replica: Replica, tenant: str, key: str | None = KEY, **request: Any) -> str:
    return await replica.create(tenant, key, wait_ready=0, **request)


async def alive(stage: Stage, *sandboxes: str) -> None:
    """All of them still live at the engine, and no others."""
    found = await stage.then.core.engine.list_sandboxes({})
    assert {item.id for item in found.items if item.state.live} == set(sandboxes)


@pytest.mark.parametrize("owner", [{}, {"workspace_owner": "shared-home"}])
async def test_two_tenants_with_one_key_get_two_sandboxes(stage: Stage, owner: dict[str, str]) -> None:
    alices = await create(stage.first, ALICE, **owner)
    bobs = await create(stage.then, BOB, **owner)
    assert alices != bobs
    await stage.between()
    for replica in (stage.then, stage.first):
        assert await create(replica, ALICE, **owner) == alices
        assert await create(replica, BOB, **owner) == bobs
    await alive(stage, alices, bobs)


async def test_two_tenants_at_the_same_moment(stage: Stage) -> None:
    asked = [(stage.first, ALICE), (stage.then, BOB), (stage.then, ALICE), (stage.first, BOB)] * 3
    got = await asyncio.gather(*(create(replica, tenant) for replica, tenant in asked))
    found = {tenant: {id for id, (_, who) in zip(got, asked, strict=True) if who == tenant} for tenant in (ALICE, BOB)}
    assert [len(ids) for ids in found.values()] == [1, 1]
    assert found[ALICE] != found[BOB]
    await stage.between()
    assert {await create(stage.then, ALICE)} == found[ALICE]
    assert {await create(stage.then, BOB)} == found[BOB]


async def test_two_owners_with_one_key_get_two_sandboxes(stage: Stage) -> None:
    first = await create(stage.first, ALICE, workspace_owner="alice")
    second = await create(stage.then, ALICE, workspace_owner="alice-2")
    nobody_s = await create(stage.then, ALICE)
    assert len({first, second, nobody_s}) == 3
    await stage.between()
    assert await create(stage.then, ALICE, workspace_owner="alice") == first
    assert await create(stage.first, ALICE, workspace_owner="alice-2") == second
    assert await create(stage.first, ALICE) == nobody_s
    await alive(stage, first, second, nobody_s)


async def test_owners_that_look_alike_are_different_owners(stage: Stage) -> None:
    owners = ["Alice", "ALICE", "A.lice", "A-lice", "A_lice", "A.lice."]
    made = {owner: await create(stage.first, ALICE, workspace_owner=owner) for owner in owners}
    assert len(set(made.values())) == len(owners)
    await stage.between()
    for owner, sandbox_id in made.items():
        assert await create(stage.then, ALICE, workspace_owner=owner) == sandbox_id
    for other in (
        "Alic\u0065\u0301",
        "Alic\u00e9",
        "\uff21lice",
        "A\u200blice",
        "Alice ",
        " Alice",
        "Alice\u0000",
        "Alice%20",
    ):
        refused = await stage.then.ask(ALICE, "POST", "/v1/sandboxes", {"workspace_owner": other}, key=KEY)
        assert refused.status == 422, other
    await alive(stage, *made.values())


async def test_without_an_owner_another_body_is_another_sandbox(stage: Stage) -> None:
    first = await create(stage.first, ALICE, env={"A": "1"})
    second = await create(stage.then, ALICE, env={"A": "2"})
    assert first != second
    await stage.between()
    assert await create(stage.then, ALICE, env={"A": "1"}) == first
    assert await create(stage.first, ALICE, env={"A": "2"}) == second
    await alive(stage, first, second)


async def test_with_an_owner_another_body_is_refused(stage: Stage) -> None:
    made = await create(stage.first, ALICE, workspace_owner="alice", env={"A": "1"})
    body = {"workspace_owner": "alice", "env": {"A": "2"}}
    refused = await stage.then.ask(ALICE, "POST", "/v1/sandboxes", body, key=KEY)
    assert (refused.status, refused.json["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
    await alive(stage, made)


async def test_an_owner_of_others_is_refused_and_makes_nothing(stage: Stage) -> None:
    alices = await create(stage.first, ALICE, workspace_owner="alice")
    await stage.between()
    refused = await stage.then.ask(BOB, "POST", "/v1/sandboxes", {"workspace_owner": "alice"}, key=KEY)
    assert (refused.status, refused.json["code"]) == (403, "FORBIDDEN")
    await alive(stage, alices)


def forged(digest: str) -> dict[str, str]:
    """What an attacker writes into metadata to be taken for the victim's sandbox."""
    owner = identity.owner_digest("alice")
    plain = {"idem": digest, "idem-owner": owner, "tenant": ALICE, "generation": "g", "attempt": "1", "signature": "s"}
    labels: dict[str, str] = {}
    for name, value in plain.items():
        labels[f"{RESERVED}{name}"] = value
        labels[f"{RESERVED.upper()}{name.upper()}"] = value
        labels[f" {RESERVED}{name}\t"] = value
        labels[f"OnceBox.io/{name}"] = value
    return labels


REFUSED = [
    "\uff4fncebox.io/idem",
    "oncebox.io%2Fidem",
    "oncebox\u2024io/idem",
    "oncebox.io\u2215idem",
    "x/oncebox.io/idem",
]


async def test_reserved_metadata_is_worth_nothing_however_it_is_written(stage: Stage) -> None:
    digest = identity.sandbox_digest(ALICE, "alice", "", KEY)
    planted = await create(stage.first, BOB, "bobs", metadata=forged(digest) | {"team": "red"})
    labels = await stage.rig.labels(planted)
    assert labels[f"{RESERVED}tenant"] == BOB
    assert labels[f"{RESERVED}idem"] != digest
    assert {key.removeprefix(RESERVED) for key in labels if "oncebox" in key.casefold()} == {
        "idem", "idem-owner", "tenant", "fingerprint", "generation", "attempt", "signature",
    }  # fmt: skip
    for key in REFUSED:
        refused = await stage.then.ask(BOB, "POST", "/v1/sandboxes", {"metadata": {key: digest}})
        assert refused.status == 422, key
    await stage.between()
    alices = await create(stage.then, ALICE, workspace_owner="alice")
    assert alices != planted
    shown = (await stage.then.ask(BOB, "GET", f"/v1/sandboxes/{planted}")).json
    assert shown["metadata"] == {"team": "red"}
    await alive(stage, planted, alices)


async def test_reserved_metadata_of_jobs_is_dropped(stage: Stage) -> None:
    sandbox = await stage.first.create(BOB)
    body = {"sandbox_id": sandbox, "command": "true", "metadata": {**forged("d"), "team": "red"}}
    submitted = await stage.then.ask(BOB, "POST", "/v1/exec-jobs", body, key=KEY)
    assert (submitted.status, submitted.json["metadata"]) == (202, {"team": "red"})


async def test_the_environment_can_not_name_another_fence(stage: Stage) -> None:
    sandbox = await stage.first.create(BOB)
    body = {"sandbox_id": sandbox, "command": "true"}
    for name in ("ONCEBOX_COMMAND", "ONCEBOX_FENCE", "ONCEBOX_FENCE_0", "ONCEBOX_FENCE_12"):
        refused = await stage.then.ask(BOB, "POST", "/v1/exec-jobs", {**body, "env": {name: "x"}})
        assert refused.status == 422, name


async def test_one_key_for_jobs_of_two_tenants_is_two_jobs(stage: Stage) -> None:
    homes = {tenant: await stage.first.create(tenant) for tenant in (ALICE, BOB)}
    jobs = {tenant: await stage.first.submit(tenant, home, PRINTS_THEN_ENDS, KEY) for tenant, home in homes.items()}
    assert jobs[ALICE] != jobs[BOB]
    outputs = {tenant: (await stage.first.finished(tenant, job))["output"] for tenant, job in jobs.items()}
    assert all(output.strip().isdigit() for output in outputs.values())
    await stage.between()
    for tenant, other in ((ALICE, BOB), (BOB, ALICE)):
        assert await stage.then.submit(tenant, homes[tenant], PRINTS_THEN_ENDS, KEY) == jobs[tenant]
        assert (await stage.then.finished(tenant, jobs[tenant]))["output"] == outputs[tenant]
        body = {"sandbox_id": homes[other], "command": PRINTS_THEN_ENDS}
        assert (await stage.then.ask(tenant, "POST", "/v1/exec-jobs", body, key=KEY)).status == 404
        assert (await stage.then.ask(tenant, "GET", f"/v1/exec-jobs/{jobs[other]}")).status == 404
