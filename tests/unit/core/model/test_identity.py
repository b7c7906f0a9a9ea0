"""Names of claims, jobs and fences: no two callers' keys meet, and digests keep their form over releases."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.model import identity
from service.messages import CreateSandbox, SubmitJob

text = st.text(max_size=20) | st.sampled_from(["", "ab", "a", "ab|cd", "bcd", "2:ab", "-", "|", "1:a|1:b", "é", "é"])
owners = st.none() | text


@given(st.tuples(text, owners, text), st.tuples(text, owners, text))
def test_two_different_callers_never_share_the_digest_of_a_sandbox(
    one: tuple[str, str | None, str], other: tuple[str, str | None, str]
) -> None:
    digests = [identity.sandbox_digest(tenant, owner, "f" * 32, key) for tenant, owner, key in (one, other)]
    assert (digests[0] == digests[1]) == (one == other)


@given(st.tuples(text, text, text), st.tuples(text, text, text))
def test_two_different_callers_never_share_the_digest_of_a_job(
    one: tuple[str, str, str], other: tuple[str, str, str]
) -> None:
    assert (identity.job_digest(*one) == identity.job_digest(*other)) == (one == other)


def test_parts_that_join_alike_are_told_apart() -> None:
    cases = [
        ("t", "ab", "cd"),
        ("t", "a", "bcd"),
        ("t", "ab|cd", ""),
        ("ta", "b", "cd"),
        ("t", "", "abcd"),
        ("t", None, "abcd"),
    ]
    digests = {identity.sandbox_digest(tenant, owner, "f" * 32, key) for tenant, owner, key in cases}
    assert len(digests) == len(cases)


def test_without_an_owner_another_body_is_another_sandbox() -> None:
    assert identity.sandbox_digest("t", None, "a" * 32, "k") != identity.sandbox_digest("t", None, "b" * 32, "k")


def test_with_an_owner_the_key_alone_names_the_sandbox() -> None:
    assert identity.sandbox_digest("t", "alice", "a" * 32, "k") == identity.sandbox_digest("t", "alice", "b" * 32, "k")


def test_a_sandbox_and_a_job_never_share_a_digest() -> None:
    assert identity.sandbox_digest("t", "s", "f" * 32, "k") != identity.job_digest("t", "s", "k")


def test_digests_keep_their_form_over_releases() -> None:
    """Golden vectors: these stand in labels of sandboxes that outlive a release."""
    digest = identity.job_digest("default", "sb-1", "k")
    assert identity.sandbox_digest("default", None, "f" * 32, "k") == "992b27d7a68f1de90c25081699b64ad5"
    assert identity.sandbox_digest("default", "alice", "f" * 32, "k") == "9ca42e49848c007d1d8447fbbd6199e4"
    assert digest == "7a65e7887bd007d81540f33167a18615"
    assert identity.owner_digest("alice") == "700edbb633f4553c4a82951b47e8b4d3"
    assert identity.command_id("sb-1", identity.job_ref(digest)) == "cmd_-c2ItMQ_40IN_zx6vsZXSM5FdmsBoQ"
    box = "0b8f0c1e-93a7-4d55-8d2e-6d2c41f4a3b1"
    assert identity.command_id(box, identity.job_ref(digest)) == "cmd_C48MHpOnTVWNLm0sQfSjsQ_40IN_zx6vsZXSM5FdmsBoQ"
    assert identity.fence_token("0" * 32, 1) == "dc7398cf75362a54245be30064cedd2e"
    assert identity.signature("s", "acme", "", "d") == "d298b79012339808af8fedee7c478233"
    request = SubmitJob(sandbox_id="a", command="b", env={"B": "1", "A": "2"})
    assert identity.fingerprint(request) == "82a321faedd74905827324f9899af4a8"


SANDBOX_IDS = (
    st.text("abzAZ09._-", min_size=1, max_size=128) | st.uuids().map(str) | st.uuids().map(lambda id: str(id).upper())
)


@given(SANDBOX_IDS, st.text(max_size=40))
def test_a_command_id_leads_back_to_its_sandbox(sandbox_id: str, digest: str) -> None:
    ref = identity.job_ref(digest)
    assert identity.parse_command_id(identity.command_id(sandbox_id, ref)) == (sandbox_id, ref)


@given(st.uuids().map(str))
def test_a_command_id_is_short_where_the_engine_s_ids_are_uuids(sandbox_id: str) -> None:
    assert len(identity.command_id(sandbox_id, identity.job_ref(identity.random_token()))) == 49


REF = "A" * 22


@pytest.mark.parametrize(
    "made_up",
    [
        "", "cmd_", "cmd__" + REF, "cmd_-_" + REF, "cmd_-c2ItMQ_" + "A" * 21, "cmd_-c2ItMQ_" + "A" * 23,
        "cmd_-c2ItMQ_" + "A" * 21 + "B", "cmd_-c2ItMQ==_" + REF, "cmd_-c2ItMR_" + REF, "cmd_-/w_" + REF,
        "cmd_-_w_" + REF,
        "cmd_c2ItMQ_" + REF, "CMD_-c2ItMQ_" + REF, " cmd_-c2ItMQ_" + REF, "cmd_-c2ItMQ_" + REF + "\n",
        "cmd_-" + "A" * 300 + "_" + REF, "cmd_" + "A" * 21 + "B_" + REF,
        "cmd_-MGI4ZjBjMWUtOTNhNy00ZDU1LThkMmUtNmQyYzQxZjRhM2Ix_" + REF,
    ],
)  # fmt: skip
def test_an_id_that_we_would_not_make_is_no_id(made_up: str) -> None:
    assert identity.parse_command_id(made_up) is None


@given(st.text())
def test_any_text_is_an_id_or_is_not(anything: str) -> None:
    parsed = identity.parse_command_id(anything)
    assert parsed is None or identity.command_id(*parsed) == anything


def test_the_ref_and_the_token_do_not_tell_the_digest() -> None:
    digest = identity.job_digest("t", "s", "key")
    ref = identity.job_ref(digest)
    tokens = [identity.fence_token(ref, attempt) for attempt in (1, 2, 3)]
    assert all(a != b for a, b in combinations([digest, ref, *tokens], 2))


# -- fingerprints


def test_fields_not_sent_and_nulls_mean_the_same() -> None:
    bare = CreateSandbox(image="x")
    assert identity.fingerprint(bare) == identity.fingerprint(CreateSandbox(image="x", env=None, timeout=None))


def test_the_order_of_keys_does_not_matter() -> None:
    one = CreateSandbox(env={"A": "1", "B": "2"}, metadata={"x": "1", "y": "2"})
    other = CreateSandbox(metadata={"y": "2", "x": "1"}, env={"B": "2", "A": "1"})
    assert identity.fingerprint(one) == identity.fingerprint(other)


def test_what_belongs_to_the_request_alone_is_left_out() -> None:
    left_out = frozenset({"wait_ready"})
    one = identity.fingerprint(CreateSandbox(image="x", wait_ready=1), leave_out=left_out)
    assert one == identity.fingerprint(CreateSandbox(image="x"), leave_out=left_out)


commands = st.builds(
    SubmitJob,
    sandbox_id=st.just("s"),
    command=st.text(min_size=1, max_size=5),
    timeout=st.none() | st.integers(1, 3),
    cwd=st.none() | st.sampled_from(["/a", "/b"]),
    env=st.none() | st.dictionaries(st.sampled_from("AB"), st.sampled_from("12"), max_size=2),
)


@given(commands, commands)
def test_two_requests_that_mean_different_things_differ(one: SubmitJob, other: SubmitJob) -> None:
    assert (identity.fingerprint(one) == identity.fingerprint(other)) == (one == other)


# -- signatures


def test_a_signature_is_worth_nothing_for_anybody_else() -> None:
    mine = identity.signature("secret", "acme", "o", "d")
    assert identity.same(mine, identity.signature("secret", "acme", "o", "d"))
    for secret, tenant, owner, digest in [
        ("other", "acme", "o", "d"),
        ("secret", "evil", "o", "d"),
        ("secret", "acme", "x", "d"),
        ("secret", "acme", "o", "x"),
    ]:
        assert not identity.same(mine, identity.signature(secret, tenant, owner, digest))


@pytest.mark.parametrize("text", ["\u00b2", "\u0661", "", "0", "01", "-1", "+1", " 1", "1 ", "1_0", "1.0", "9" * 5000])
def test_what_we_would_not_write_is_no_attempt(text: str) -> None:
    assert identity.parse_attempt(text) is None
    assert [identity.parse_attempt(str(n)) for n in (1, 64, 9999)] == [1, 64, 9999]
