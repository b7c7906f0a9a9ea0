"""Labels written behind the service's back, with the engine's key or by an image: worth nothing.

What is remembered in Redis counts first. Once Redis has lost its data, labels count only with a signature made with
ONCEBOX_SECRET. Without that setting, whoever holds the engine's key can pass a sandbox off as anybody's: the last
tests show what stays, and docs/security.md says so.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import redis.asyncio

from service.core import records
from service.core.model import identity
from service.store import keys
from tests.integration.tenants_rig import ALICE, BOB, RESERVED, Replica, TenantsRig, tenants_file

pytestmark = pytest.mark.integration

KEY = "task-17"
ALICES = identity.sandbox_digest(ALICE, "alice", "", KEY)


def alices_labels(**more: str) -> dict[str, str]:
    """Everything that Alice's sandbox of that key would carry, but for the signature."""
    named = {
        "idem": ALICES, "idem-owner": identity.owner_digest("alice"), "tenant": ALICE, "fingerprint": "f",
        "generation": "g", "attempt": "1", **more,
    }  # fmt: skip
    return {f"{RESERVED}{name}": value for name, value in named.items()}


SIGNATURES = ["", "0" * 32, identity.signature("another secret", ALICE, identity.owner_digest("alice"), ALICES)]


async def alices(replica: Replica) -> str:
    return await replica.create(ALICE, KEY, workspace_owner="alice", wait_ready=0)


async def sees(replica: Replica, tenant: str, sandbox_id: str) -> bool:
    """The tenant can get it. What a tenant can't get is in no list of its own either."""
    got = (await replica.ask(tenant, "GET", f"/v1/sandboxes/{sandbox_id}")).status == 200
    listed = (await replica.ask(tenant, "GET", "/v1/sandboxes")).json["items"]
    assert got or sandbox_id not in {item["sandbox_id"] for item in listed}
    return got


@pytest.mark.parametrize("signature", SIGNATURES)
@pytest.mark.parametrize("flushed", [False, True])
async def test_a_planted_sandbox_is_not_adopted(
    tenants: TenantsRig, one: Replica, signature: str, flushed: bool
) -> None:
    planted = await tenants.create_at_engine(alices_labels(signature=signature))
    made = await alices(one)
    assert made != planted
    if flushed:
        await tenants.flush()
    assert await alices(one) == made
    assert not await sees(one, ALICE, planted)


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_sandbox_of_another_tenant_relabelled_is_not_adopted(
    tenants: TenantsRig, one: Replica, two: Replica, flushed: bool
) -> None:
    bobs = await one.create(BOB)
    await tenants.forge(bobs, {**alices_labels()})
    if flushed:
        await tenants.flush()
    assert await alices(two) != bobs
    assert not await sees(two, ALICE, bobs)
    assert await sees(two, BOB, bobs) is not flushed, "what was remembered counts; a broken signature does not"


@pytest.mark.parametrize("flushed", [False, True])
async def test_a_relabelled_sandbox_does_not_change_hands(
    tenants: TenantsRig, one: Replica, two: Replica, flushed: bool
) -> None:
    victims = await alices(one)
    bobs = await tenants.labels(await one.create(BOB))
    await tenants.forge(victims, {**bobs, f"{RESERVED}signature": None})
    if flushed:
        await tenants.flush()
    for replica in (one, two):
        assert not await sees(replica, BOB, victims)
    if not flushed:
        assert await sees(two, ALICE, victims)
        assert await alices(two) == victims


async def test_a_tenant_label_alone_does_not_carry_a_signature_along(tenants: TenantsRig, one: Replica) -> None:
    victims = await alices(one)
    await tenants.forge(victims, {f"{RESERVED}tenant": BOB})
    await tenants.flush()
    assert not await sees(one, BOB, victims)


async def test_the_sweeper_believes_what_is_remembered(tenants: TenantsRig, one: Replica, two: Replica) -> None:
    bobs = await one.create(BOB, "bobs")
    labels = await tenants.labels(bobs)
    victims = await alices(one)
    async with redis.asyncio.Redis.from_url(tenants.redis_url) as client:
        name = keys.claim(labels[f"{RESERVED}idem"])
        raw = await client.get(name)
        assert isinstance(raw, bytes)
        header, _, body = raw.partition(b"\n")
        claim = msgspec.json.decode(body, type=records.SandboxClaim)
        gave_up = msgspec.structs.replace(claim, given_up=[7])
        await client.set(name, header + b"\n" + records.encode(gave_up))
    late = {**labels, f"{RESERVED}attempt": "7"}
    duplicate = await tenants.create_at_engine(late)
    await tenants.forge(victims, {**late})
    sweeper, engine = two.core.sweeper, two.core.engine
    assert await sweeper.given_up(await engine.get_sandbox(duplicate), grace=-3600), "a late duplicate goes"
    assert not await sweeper.given_up(await engine.get_sandbox(victims), grace=-3600), "a sandbox in use stays"
    unsigned = await tenants.create_at_engine({**late, f"{RESERVED}signature": "0" * 32})
    assert not await sweeper.given_up(await engine.get_sandbox(unsigned), grace=-3600)


# -- what stays without ONCEBOX_SECRET


@pytest.fixture
async def unsigned(tenants: TenantsRig, tmp_path: Path) -> Replica:
    return await tenants.replica(tenants_file(tmp_path), secret=None)


async def test_without_a_secret_what_is_remembered_still_counts(tenants: TenantsRig, unsigned: Replica) -> None:
    bobs = await unsigned.create(BOB)
    await tenants.forge(bobs, {**alices_labels(signature="")})
    assert await alices(unsigned) != bobs
    assert not await sees(unsigned, ALICE, bobs)
    assert await sees(unsigned, BOB, bobs)


async def test_without_a_secret_the_engine_s_key_passes_a_sandbox_off_as_anybody_s(
    tenants: TenantsRig, unsigned: Replica
) -> None:
    """What stays, so that a change of it is noticed."""
    planted = await tenants.create_at_engine(alices_labels(signature=""))
    assert await alices(unsigned) == planted


async def test_labels_that_an_image_brings_do_not_show_through(tenants: TenantsRig, unsigned: Replica) -> None:
    """Every create writes every reserved label, with or without a key, owner and secret."""
    plain = await unsigned.create(BOB, wait_ready=0)
    assert {key.removeprefix(RESERVED) for key in await tenants.labels(plain) if key.startswith(RESERVED)} == {
        "idem", "idem-owner", "tenant", "fingerprint", "generation", "attempt", "signature",
    }  # fmt: skip
