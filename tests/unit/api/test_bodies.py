"""Bodies: JSON only, bounded, every error names its field, and nothing reaches the core."""

import asyncio
from typing import Any

import pytest

from service.api import bodies, middleware
from service.messages import MAX_BODY
from tests.support.waiting import PATIENCE
from tests.unit.api.fakes import Connection, FakeCore, ask, post

OK: dict[str, Any] = {"sandbox_id": "sb", "command": "true"}

FIELDS: list[tuple[str, Any, str]] = [
    ("/v1/exec-jobs", {**OK, "comand": "x"}, "comand"),
    ("/v1/exec-jobs", {"command": "true"}, "sandbox_id"),
    ("/v1/exec-jobs", {**OK, "sandbox_id": 1}, "sandbox_id"),
    ("/v1/exec-jobs", {**OK, "sandbox_id": ""}, "sandbox_id"),
    ("/v1/exec-jobs", {**OK, "sandbox_id": "x" * 129}, "sandbox_id"),
    ("/v1/exec-jobs", {**OK, "command": ""}, "command"),
    ("/v1/exec-jobs", {**OK, "argv": []}, "argv"),
    ("/v1/exec-jobs", {**OK, "argv": ["a", 1]}, "argv.1"),
    ("/v1/exec-jobs", {**OK, "stdin_encoding": "hex"}, "stdin_encoding"),
    ("/v1/exec-jobs", {**OK, "stdin_path": ""}, "stdin_path"),
    ("/v1/exec-jobs", {**OK, "user": ""}, "user"),
    ("/v1/exec-jobs", {**OK, "stderr": "both"}, "stderr"),
    ("/v1/exec", {**OK, "stderr": "apart"}, "stderr"),
    ("/v1/exec-jobs", {**OK, "command": ["ls"]}, "command"),
    ("/v1/exec-jobs", {**OK, "timeout": 0}, "timeout"),
    ("/v1/exec-jobs", {**OK, "timeout": 14_401}, "timeout"),
    ("/v1/exec-jobs", {**OK, "timeout": "60"}, "timeout"),
    ("/v1/exec-jobs", {**OK, "timeout": 1.5}, "timeout"),
    ("/v1/exec-jobs", {**OK, "timeout": True}, "timeout"),
    ("/v1/exec-jobs", {**OK, "timeout": 10**30}, "timeout"),
    ("/v1/exec-jobs", {**OK, "env": {"A": 1}}, "env"),
    ("/v1/exec-jobs", {**OK, "env": []}, "env"),
    ("/v1/exec-jobs", {**OK, "metadata": {"a": None}}, "metadata"),
    ("/v1/exec-jobs", {**OK, "cwd": ""}, "cwd"),
    ("/v1/exec", {**OK, "timeout": 7_201}, "timeout"),
    ("/v1/exec", {**OK, "encoding": "latin1"}, "encoding"),
    ("/v1/exec", {**OK, "metadata": []}, "metadata"),
    ("/v1/sandboxes", {"timeout": 59}, "timeout"),
    ("/v1/sandboxes", {"timeout": 86_401}, "timeout"),
    ("/v1/sandboxes", {"wait_ready": 121}, "wait_ready"),
    ("/v1/sandboxes", {"image": ""}, "image"),
    ("/v1/sandboxes", {"entrypoint": []}, "entrypoint"),
    ("/v1/sandboxes", {"entrypoint": ["a", 1]}, "entrypoint.1"),
    ("/v1/sandboxes", {"resources": {"cpu": 1}}, "resources.cpu"),
    ("/v1/sandboxes", {"resources": {"gpu": "1"}}, "resources.gpu"),
    ("/v1/sandboxes", {"workspace_owner": 7}, "workspace_owner"),
    ("/v1/sandboxes/sb/renew", {}, "timeout"),
    ("/v1/sandboxes/sb/renew", {"timeout": 1}, "timeout"),
    ("/v1/sandboxes/sb/pause", {"force": True}, "force"),
    ("/v1/exec-jobs", [], "body"),
    ("/v1/exec-jobs", "x", "body"),
    ("/v1/exec-jobs", None, "body"),
    ("/v1/exec-jobs", b'{"sandbox_id":"a","sandbox_id":"b","command":"true"}', "sandbox_id"),
    ("/v1/exec-jobs", b'{"sandbox_id":"a","command":"true","env":{"A":"1","A":"2"}}', "A"),
    ("/v1/exec-jobs", b'{"sandbox_id":"a","command":"true","timeout":1e400}', "timeout"),
]


@pytest.mark.parametrize(("path", "body", "field"), FIELDS)
async def test_what_is_wrong_with_a_body_names_its_field(path: str, body: Any, field: str) -> None:
    core = FakeCore()
    got = await post(core.app(), path, body)
    assert got.status == 422
    assert got.headers["content-type"] == "application/problem+json"
    assert got.json["code"] == "INVALID_REQUEST"
    assert [item["field"] for item in got.json["errors"]] == [field]
    assert got.json["errors"][0]["message"]
    assert got.json["retryable"] is False
    assert core.calls == []


NOT_JSON = {
    "nothing": b"",
    "no end": b'{"sandbox_id":',
    "text": b"hello",
    "a form": b"sandbox_id=sb&command=true",
    "NaN": b'{"sandbox_id":"a","command":"b","timeout":NaN}',
    "Infinity": b'{"sandbox_id":"a","command":"b","timeout":Infinity}',
    "a lone surrogate": b'{"sandbox_id":"a","command":"\\ud800"}',
    "a lone surrogate in the middle": b'{"sandbox_id":"a","command":"x\\udc00y"}',
    "not UTF-8": b'{"sandbox_id":"a","command":"\xff"}',
    "UTF-16": '{"sandbox_id":"a"}'.encode("utf-16"),
    "a BOM": b'\xef\xbb\xbf{"sandbox_id":"a","command":"b"}',
    "more after the end": b'{"sandbox_id":"a","command":"b"} x',
    "a raw control character": b'{"sandbox_id":"a","command":"a\nb"}',
    "single quotes": b"{'sandbox_id':'a'}",
    "a comment": b'{"sandbox_id":"a" /* */}',
    "a trailing comma": b'{"sandbox_id":"a","command":"b",}',
}


@pytest.mark.parametrize("name", NOT_JSON)
async def test_a_body_that_is_not_json_is_400(name: str) -> None:
    core = FakeCore()
    got = await post(core.app(), "/v1/exec-jobs", NOT_JSON[name])
    assert (got.status, got.json["code"]) == (400, "INVALID_REQUEST")
    assert core.calls == []


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"env":' * 100_000,
        b'{"sandbox_id":"a","command":"b","env":{"a":' + b"[" * 400_000 + b"]" * 400_000 + b"}}",
        b'{"x":' + b"[" * 500_000,
        b'{"entrypoint":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
@pytest.mark.parametrize("path", ["/v1/exec-jobs", "/v1/sandboxes"])
async def test_a_depth_bomb_is_refused(path: str, body: bytes) -> None:
    got = await post(FakeCore().app(), path, body)
    assert got.status in (400, 422)
    assert len(got.body) < 2_000


async def test_a_huge_field_name_is_not_repeated_whole() -> None:
    got = await post(FakeCore().app(), "/v1/exec-jobs", {"x" * 100_000: 1})
    assert got.status == 422
    assert len(got.body) < 2_000


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "text/plain",
        "text/json",
        "application/json; charset=latin-1",
        "application/jsonx",
        "",
    ],
)
async def test_a_body_of_another_type_is_415(content_type: str | None) -> None:
    core = FakeCore()
    headers = [("content-length", "2")]
    if content_type is not None:
        headers.append(("content-type", content_type))
    got = await ask(core.app(), "POST", "/v1/sandboxes", headers=headers, body=[b"{}"])
    assert (got.status, got.json["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert core.calls == []


@pytest.mark.parametrize(
    "content_type", ["application/json", "Application/JSON ; Charset=UTF-8", 'application/json;charset="utf-8"']
)
async def test_json_in_any_spelling_is_taken(content_type: str) -> None:
    headers = [("content-length", "2"), ("content-type", content_type)]
    assert (await ask(FakeCore().app(), "POST", "/v1/sandboxes", headers=headers, body=[b"{}"])).status == 201


async def test_a_form_without_content_can_not_pause_a_sandbox() -> None:
    core = FakeCore()
    form = [("content-type", "application/x-www-form-urlencoded"), ("content-length", "0")]
    assert (await ask(core.app(), "POST", "/v1/sandboxes/sb/pause", headers=form)).status == 415
    assert core.calls == []
    assert (await ask(core.app(), "POST", "/v1/sandboxes/sb/pause")).status == 202


async def test_a_compressed_body_is_415() -> None:
    got = await post(FakeCore().app(), "/v1/sandboxes", {}, headers=[("Content-Encoding", "gzip")])
    assert got.status == 415


async def test_a_body_over_the_limit_is_413_before_it_is_read() -> None:
    core = FakeCore()
    headers = [("content-type", "application/json"), ("content-length", str(MAX_BODY + 1))]
    got = await ask(core.app(), "POST", "/v1/exec-jobs", headers=headers, body=[b"x"])
    assert (got.status, got.json["code"]) == (413, "PAYLOAD_TOO_LARGE")
    assert core.calls == []


async def test_a_chunked_body_is_counted_and_refused_at_the_limit() -> None:
    headers = [("content-type", "application/json"), ("transfer-encoding", "chunked")]
    sent = Connection(FakeCore().app(), "POST", "/v1/exec-jobs", headers=headers, body=[b"x" * 65_536] * 17, more=True)
    async with asyncio.timeout(PATIENCE):
        while sent.got.status == 0:
            await asyncio.sleep(0)
    assert sent.got.status == 413
    sent.disconnect()
    await sent.answer()


async def test_a_body_of_exactly_the_limit_is_taken() -> None:
    body = b'{"sandbox_id":"sb","command":"true"}'.ljust(MAX_BODY)
    assert (await post(FakeCore().app(), "/v1/exec-jobs", body)).status == 202


async def test_a_body_in_pieces_is_taken() -> None:
    body = b'{"sandbox_id":"sb","command":"true"}'
    headers = [("content-type", "application/json"), ("transfer-encoding", "chunked")]
    pieces = [body[index : index + 1] for index in range(len(body))]
    assert (await ask(FakeCore().app(), "POST", "/v1/exec-jobs", headers=headers, body=pieces)).status == 202


async def test_a_sender_too_slow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware, "BODY_SECONDS", 0.01)
    monkeypatch.setattr(middleware, "LINGER_SECONDS", 0.01)
    core = FakeCore()
    headers = [("content-type", "application/json"), ("content-length", "100")]
    sent = Connection(core.app(), "POST", "/v1/exec-jobs", headers=headers, body=[b"{"], more=True)
    assert (await sent.answer()).status == 422
    assert core.calls == []


async def test_a_caller_who_leaves_in_the_middle_of_a_body_starts_nothing() -> None:
    core = FakeCore()
    headers = [("content-type", "application/json"), ("content-length", "100")]
    sent = Connection(core.app(), "POST", "/v1/exec-jobs", headers=headers, body=[b"{"], more=True)
    sent.disconnect()
    got = await sent.answer()
    assert got.status == 0
    assert core.calls == []


async def test_the_rest_of_a_refused_body_is_read_so_that_its_sender_reads_the_answer() -> None:
    headers = [("content-type", "text/plain"), ("transfer-encoding", "chunked")]
    sent = Connection(FakeCore().app(), "POST", "/v1/exec-jobs", headers=headers, body=[b"x"] * 50)
    got = await sent.answer()
    assert (got.status, got.finished) == (415, True)
    assert sent.incoming.empty()


async def test_lengths_that_lie_are_refused() -> None:
    headers = [("content-type", "application/json"), ("content-length", "5"), ("content-length", "6")]
    got = await ask(FakeCore().app(), "POST", "/v1/exec-jobs", headers=headers, body=[b"{}"])
    assert got.status == 422
    headers = [("content-type", "application/json"), ("content-length", "2"), ("transfer-encoding", "chunked")]
    got = await ask(FakeCore().app(), "POST", "/v1/sandboxes", headers=headers, body=[b"{}"])
    assert (got.status, got.headers["connection"]) == (422, "close")


async def test_a_raw_body_comes_as_it_is_sent_and_ends_with_its_sender_s_silence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bodies, "SILENCE_SECONDS", 0.05)
    core = FakeCore()
    connection = Connection(
        core.app(), "PUT", "/v1/sandboxes/sb/files?path=f", headers=[("content-length", "9")], body=[b"abc"], more=True
    )
    got = await connection.answer()
    assert (got.status, got.json["code"]) == (422, "INVALID_REQUEST")
    assert "No byte" in got.json["detail"]


async def test_a_raw_body_of_any_type_is_taken_and_a_compressed_one_is_not() -> None:
    for headers, status in (
        ([("content-type", "text/html"), ("content-length", "3")], 201),
        ([("transfer-encoding", "chunked")], 201),
        ([("content-length", "3"), ("content-encoding", "gzip")], 415),
    ):
        core = FakeCore()
        got = await ask(core.app(), "PUT", "/v1/sandboxes/sb/files?path=f", headers=headers, body=[b"a", b"bc"])
        assert got.status == status
        assert status != 201 or core.asked["body"] == b"abc"
        assert status != 201 or core.asked["length"] == (3 if "content-length" in dict(headers) else None)


async def test_a_raw_body_that_breaks_off_is_nobody_s() -> None:
    core = FakeCore()
    connection = Connection(
        core.app(), "PUT", "/v1/sandboxes/sb/files?path=f", headers=[("content-length", "9")], body=[b"abc"], more=True
    )
    connection.disconnect()
    assert (await connection.answer()).status == 0
    assert "body" not in core.asked


@pytest.mark.parametrize("below", ["files", "archive"])
async def test_a_raw_body_that_waits_for_room_loses_none_of_its_bytes(below: str) -> None:
    core = FakeCore()
    full = core.room.share("default")
    assert full.take(core.room.capacity)
    target = f"/v1/sandboxes/sb/{below}?path=f"
    connection = Connection(core.app(), "PUT", target, headers=[("content-length", "6")], body=[b"abc", b"def"])
    await asyncio.sleep(0.05)
    full.close()
    got = await connection.answer()
    assert got.json["size" if below == "files" else "bytes"] == 6
