"""The tenants file: whose a key is, what each may do, and that a broken file changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from service import tenants
from service.core.model.policy import Quota
from service.errors import Unauthenticated
from service.tenants import Tenants, TenantsFileBroken, key_digest, parse
from tests.support.waiting import PATIENCE

ALICE, BOB = "obx_alice", "obx_bob"


def file_with(text: str, directory: Path) -> Tenants:
    path = directory / "tenants.toml"
    path.write_text(text)
    return Tenants(str(path))


def two(directory: Path) -> Tenants:
    return file_with(
        f'[acme]\nkeys = ["{key_digest(ALICE)}", "{key_digest("obx_new")}"]\nowners = ["alice", "team-*"]\n'
        f'[acme.quota]\nsandboxes = 3\n["b.corp"]\nkeys = ["{key_digest(BOB)}"]\n',
        directory,
    )


def bearer(key: str) -> dict[str, list[str]]:
    return {"authorization": [f"Bearer {key}"]}


def test_a_key_tells_its_tenant(tmp_path: Path) -> None:
    known = two(tmp_path)
    assert known.authenticate(bearer(ALICE)) == "acme"
    assert known.authenticate(bearer("obx_new")) == "acme"
    assert known.authenticate({"authorization": [f"bearer  {BOB} "]}) == "b.corp"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong"),
        bearer(""),
        {"authorization": ["Bearer"]},
        {"authorization": [f"Basic {ALICE}"]},
        {"authorization": [f"Bearer {ALICE}", f"Bearer {ALICE}"]},
        bearer(key_digest(ALICE)),
        bearer("\ud800"),
    ],
)
def test_everything_else_is_nobody(headers: dict[str, list[str]], tmp_path: Path) -> None:
    with pytest.raises(Unauthenticated):
        two(tmp_path).authenticate(headers)


def test_a_tenant_uses_its_owners_and_no_others(tmp_path: Path) -> None:
    known = two(tmp_path)
    assert known.may_use("acme", "alice")
    assert known.may_use("acme", "team-7")
    assert not known.may_use("acme", "Alice")
    assert not known.may_use("acme", "bob")
    assert not known.may_use("acme", "acme")
    assert known.may_use("b.corp", "b.corp")
    assert not known.may_use("b.corp", "alice")
    assert not known.may_use("nobody", "nobody")


def test_quotas_are_read_and_a_tenant_that_left_has_none_left(tmp_path: Path) -> None:
    known = two(tmp_path)
    assert known.quota("acme") == Quota(sandboxes=3)
    assert known.quota("b.corp") == Quota()
    assert known.quota("gone") == Quota(sandboxes=0, jobs=0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[acme]\n",
        "[acme]\nkeys = []\n",
        '[acme]\nkeys = ["short"]\n',
        f'[acme]\nkeys = ["{"A" * 64}"]\n',
        f'["a b"]\nkeys = ["{"0" * 64}"]\n',
        f'[acme]\nkeys = ["{"0" * 64}"]\nownersx = []\n',
        f'[acme]\nkeys = ["{"0" * 64}"]\nowners = ["a/b"]\n',
        f'[acme]\nkeys = ["{"0" * 64}"]\n[acme.quota]\nsandboxes = -1\n',
        f'[acme]\nkeys = ["{"0" * 64}"]\n[acme.quota]\nsandbox = 1\n',
        f'[acme]\nkeys = ["{"0" * 64}"]\n[evil]\nkeys = ["{"0" * 64}"]\n',
    ],
)
def test_a_broken_file_is_refused(text: str) -> None:
    with pytest.raises(TenantsFileBroken):
        parse(text)


async def test_a_file_that_breaks_keeps_the_one_before(tmp_path: Path) -> None:
    known = two(tmp_path)
    (tmp_path / "tenants.toml").write_text("[acme")
    assert not await known.reload()
    assert known.authenticate(bearer(ALICE)) == "acme"
    (tmp_path / "tenants.toml").unlink()
    assert not await known.reload()
    assert known.authenticate(bearer(ALICE)) == "acme"


async def test_a_file_that_changes_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenants, "CHECK_EVERY", 0.01)
    known = two(tmp_path)
    watching = asyncio.create_task(known.watch())
    try:
        (tmp_path / "tenants.toml").write_text(f'[other]\nkeys = ["{key_digest(ALICE)}"]\n')
        async with asyncio.timeout(PATIENCE):
            while known.authenticate(bearer(ALICE)) != "other":
                await asyncio.sleep(0.01)
    finally:
        watching.cancel()


def test_a_new_key_comes_with_the_lines_that_let_it_in(tmp_path: Path) -> None:
    key = tenants.new_key()
    lines = tenants.lines_for("acme.corp", key)
    assert key not in lines
    assert file_with(lines, tmp_path).authenticate(bearer(key)) == "acme.corp"
    with pytest.raises(ValueError, match="name"):
        tenants.lines_for("a b", key)
