"""Idempotency-Key and X-Request-Id: what is taken, what is refused, what comes back."""

import contextlib

import pytest

from service.api.exchange import idempotency_key, shown_key
from service.errors import InvalidIdempotencyKey, OutcomeUnknown, SandboxNotFound, replaying
from tests.unit.api.fakes import FakeCore, ask, post

SUBMIT = {"sandbox_id": "sb", "command": "true"}
MAKING = [
    ("/v1/sandboxes", {}),
    ("/sandboxes", {}),
    ("/v1/exec-jobs", SUBMIT),
    ("/exec-jobs", SUBMIT),
    ("/v1/exec", SUBMIT),
    ("/exec", SUBMIT),
]


@pytest.mark.parametrize(
    ("sent", "key"),
    [
        ("k", "k"),
        ('"k"', "k"),
        ("a" * 255, "a" * 255),
        ('"' + "a" * 255 + '"', "a" * 255),
        (r'"a\"b\\c"', 'a"b\\c'),
        ('"', '"'),
        ("a,b;c", "a,b;c"),
        (" k\t", "k"),
        ('"k', '"k'),
    ],
)
def test_quoted_and_bare_forms_are_the_same_key(sent: str, key: str) -> None:
    assert idempotency_key([sent]) == key
    assert idempotency_key([shown_key(key)]) == key


@pytest.mark.parametrize(
    "sent",
    [
        "",
        '""',
        "a b",
        '"a b"',
        "a" * 256,
        "é",
        "a\x7f",
        "a\tb",
        "a\x00",
        r'"a\b"',
        '"a"b"',
        '"a" "b"',
        "a\r\nX-Evil: 1",
    ],
)
def test_a_key_that_is_no_visible_ascii_is_refused(sent: str) -> None:
    with pytest.raises(InvalidIdempotencyKey):
        idempotency_key([sent])


def test_two_keys_are_refused_even_when_equal() -> None:
    with pytest.raises(InvalidIdempotencyKey):
        idempotency_key(["k", "k"])


@pytest.mark.parametrize(("path", "body"), MAKING)
async def test_a_post_that_makes_something_names_the_key_in_force(path: str, body: object) -> None:
    core = FakeCore()
    with_key = await post(core.app(), path, body, headers=[("Idempotency-Key", '"mine"')])
    assert with_key.headers["idempotency-key"] == "mine"
    assert core.asked["key"] == "mine"

    without = await post(core.app(), path, body)
    made = without.headers["idempotency-key"]
    assert len(made) == 32
    assert core.asked["key"] == made, "a retry with the key that the caller was told must meet the same claim"


@pytest.mark.parametrize(("path", "body"), MAKING)
async def test_problems_of_a_post_that_makes_something_name_the_key_too(path: str, body: object) -> None:
    core = FakeCore(error=SandboxNotFound())
    refused = await post(core.app(), path, body)
    assert refused.headers["idempotency-key"] == core.asked["key"]

    not_json = await post(core.app(), path, b"{", headers=[("Idempotency-Key", "mine")])
    assert (not_json.status, not_json.headers["idempotency-key"]) == (400, "mine")

    form = await ask(core.app(), "POST", path, headers=[("content-type", "text/plain"), ("content-length", "1")])
    assert (form.status, len(form.headers["idempotency-key"])) == (415, 32)

    bad = await post(core.app(), path, body, headers=[("Idempotency-Key", "a b")])
    assert (bad.status, bad.json["code"]) == (400, "INVALID_IDEMPOTENCY_KEY")
    assert len(bad.headers["idempotency-key"]) == 32


async def test_several_key_headers_are_refused_and_nothing_is_asked_of_the_core() -> None:
    core = FakeCore()
    got = await post(core.app(), "/v1/exec-jobs", SUBMIT, headers=[("Idempotency-Key", "a")] * 2)
    assert got.json["code"] == "INVALID_IDEMPOTENCY_KEY"
    assert core.calls == []


@pytest.mark.parametrize("path", ["/v1/sandboxes/sb/pause", "/v1/sandboxes/sb/resume", "/v1/sandboxes/sb/renew"])
async def test_other_posts_accept_a_key_and_check_it(path: str) -> None:
    body = {"timeout": 60} if path.endswith("renew") else {}
    accepted = await post(FakeCore().app(), path, body, headers=[("Idempotency-Key", "k")])
    assert accepted.status in (200, 202)
    refused = await post(FakeCore().app(), path, body, headers=[("Idempotency-Key", "a b")])
    assert refused.status == 400


@pytest.mark.parametrize(("path", "body"), MAKING)
async def test_a_replayed_answer_says_so(path: str, body: object) -> None:
    assert "idempotent-replayed" not in (await post(FakeCore().app(), path, body)).headers
    replayed = await post(FakeCore(replayed=True).app(), path, body)
    assert replayed.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize(("path", "body"), MAKING)
async def test_a_problem_of_another_request_says_so(path: str, body: object) -> None:
    for replayed in (False, True):
        error = OutcomeUnknown("Nobody knows.")
        with contextlib.suppress(OutcomeUnknown), replaying(replayed):
            raise error
        got = await post(FakeCore(error=error).app(), path, body)
        assert got.status == 502
        assert got.headers.get("idempotent-replayed") == ("true" if replayed else None)


async def test_an_unknown_outcome_is_retryable_only_with_a_key_of_the_callers() -> None:
    core = FakeCore(error=OutcomeUnknown(command_id="cmd_x"))
    keyed = await post(core.app(), "/v1/exec-jobs", SUBMIT, headers=[("Idempotency-Key", "k")])
    assert (keyed.status, keyed.json["retryable"], keyed.json["command_id"]) == (502, True, "cmd_x")
    assert keyed.headers["retry-after"] == "1"
    bare = await post(core.app(), "/v1/exec-jobs", SUBMIT)
    assert (bare.status, bare.json["retryable"]) == (502, False)
    assert "retry-after" not in bare.headers


@pytest.mark.parametrize("sent", ["abc-1", "01J.x~+/=:@", "a" * 128])
async def test_a_sane_request_id_comes_back(sent: str) -> None:
    got = await ask(FakeCore().app(), "GET", "/healthz", headers=[("X-Request-Id", sent)])
    assert got.headers["x-request-id"] == sent


@pytest.mark.parametrize("sent", ["", "a" * 129, "a b", "a\r\nX-Evil: 1", "é", "\x00", "<script>", '"a"', "-", "a\x85"])
async def test_any_other_request_id_is_replaced(sent: str) -> None:
    got = await ask(FakeCore().app(), "GET", "/healthz", headers=[("X-Request-Id", sent)])
    assert got.headers["x-request-id"] != sent
    assert len(got.headers["x-request-id"]) == 32
    assert "x-evil" not in got.headers


async def test_two_request_ids_are_replaced() -> None:
    got = await ask(FakeCore().app(), "GET", "/healthz", headers=[("X-Request-Id", "a"), ("X-Request-Id", "b")])
    assert len(got.headers["x-request-id"]) == 32
