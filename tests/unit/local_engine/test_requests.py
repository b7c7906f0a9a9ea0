"""What the local engine accepts, and how it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.local_engine import volumes
from service.local_engine.command_requests import BadCommand, parse_command
from service.local_engine.lifecycle_routes import parse_expiry, parse_filter
from service.local_engine.replies import Invalid, Refused
from service.local_engine.requests import (
    VolumeRequest,
    is_label_key,
    is_label_value,
    parse_create,
)

BODY: dict[str, Any] = {
    "image": {"uri": "x"},
    "entrypoint": ["sleep"],
    "resourceLimits": {"cpu": "500m", "memory": "256Mi"},
    "timeout": 60,
}


def create(**fields: Any) -> bytes:
    return json.dumps({**BODY, **fields}).encode()


def test_a_create_is_read() -> None:
    request = parse_create(create(env={"A": "1", "B": None}, metadata={"k": ""}, unknown=1), 100)
    assert request.memory == 256 * 1024 * 1024
    assert request.env == {"A": "1", "B": ""}
    assert request.timeout == 60
    assert parse_create(create(timeout=None), 100).timeout is None


@pytest.mark.parametrize(
    ("memory", "size"), [("1024", 1024), ("1k", 1000), ("2Ki", 2048), ("3Mb", 3_000_000), ("1Gi", 1 << 30)]
)
def test_memory_is_a_quantity(memory: str, size: int) -> None:
    assert parse_create(create(resourceLimits={"memory": memory}), 100).memory == size


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"timeout": 59}, ["body", "timeout"]),
        ({"timeout": "soon"}, ["body", "timeout"]),
        ({"entrypoint": "sleep"}, ["body", "entrypoint"]),
        ({"entrypoint": []}, ["body", "entrypoint"]),
        ({"entrypoint": [1]}, ["body", "entrypoint", 0]),
        ({"image": "x"}, ["body", "image"]),
        ({"image": {}}, ["body", "image", "uri"]),
        ({"image": {"uri": " "}}, ["body"]),
        ({"resourceLimits": {"cpu": 1}}, ["body", "resourceLimits", "cpu"]),
        ({"metadata": {"k": 5}}, ["body", "metadata", "k"]),
        ({"volumes": [{"name": "w", "mountPath": "x", "host": {"path": "/"}}]}, ["body", "volumes", 0, "mountPath"]),
        ({"volumes": [{"name": "w", "mountPath": "/x"}]}, ["body", "volumes", 0]),
    ],
)
def test_what_breaks_the_schema_is_422_and_names_the_place(fields: dict[str, Any], place: list[Any]) -> None:
    with pytest.raises(Invalid) as refused:
        parse_create(create(**fields), 100)
    assert refused.value.detail["loc"] == place


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"timeout": 101}, "SANDBOX::INVALID_PARAMETER"),
        ({"resourceLimits": {"cpu": "0"}}, "SANDBOX::INVALID_PARAMETER"),
        ({"resourceLimits": {"memory": "much"}}, "SANDBOX::INVALID_PARAMETER"),
        ({"metadata": {"opensandbox.io/x": "1"}}, "SANDBOX::INVALID_METADATA_LABEL"),
        ({"metadata": {"k": "x" * 64}}, "SANDBOX::INVALID_METADATA_LABEL"),
    ],
)
def test_what_the_server_does_not_allow_is_400(fields: dict[str, Any], code: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_create(create(**fields), 100)
    assert (refused.value.status, refused.value.code) == (400, code)


@given(st.text(max_size=70))
def test_a_label_value_is_what_kubernetes_allows(value: str) -> None:
    inner = all(c.isascii() and (c.isalnum() or c in "-_.") for c in value)
    ends = not value or (value[0].isalnum() and value[-1].isalnum())
    assert is_label_value(value) == (len(value) <= 63 and inner and ends)


@pytest.mark.parametrize(
    ("key", "valid"),
    [
        ("team", True), ("a.b/c", True), ("oncebox.io/idem-owner", True), ("a/b/c", False), ("/a", False),
        ("a/", False), ("", False), ("A.b/c", False), ("-a", False), ("x" * 64, False), ("x" * 253 + "/n", True),
        ("x" * 254 + "/n", False),
    ],
)  # fmt: skip
def test_a_label_key_is_what_kubernetes_allows(key: str, valid: bool) -> None:
    assert is_label_key(key) is valid


def test_the_metadata_filter_is_a_query_string_of_its_own() -> None:
    assert parse_filter("a.b%2Fc=x&d=") == {"a.b/c": "x", "d": ""}
    assert parse_filter("") == {}
    with pytest.raises(Refused, match="bad query field"):
        parse_filter("nonsense")


def test_a_time_without_a_zone_is_utc() -> None:
    assert parse_expiry(b'{"expiresAt":"2026-01-01T00:00:00"}') == parse_expiry(
        b'{"expiresAt":"2026-01-01T01:00:00+01:00"}'
    )
    for body in (b"{}", b'{"expiresAt":"soon"}', b'{"expiresAt":[]}', b"[]"):
        with pytest.raises(Invalid):
            parse_expiry(body)


def volume(**fields: Any) -> VolumeRequest:
    return VolumeRequest(**{"name": "w", "mount_path": "/w", **fields})


def test_volumes_lie_below_their_root(tmp_path: Path) -> None:
    root = tmp_path / "volumes"
    root.mkdir()
    mounts = volumes.resolve((volume(host_path=str(root), sub_path="a/b"), volume(claim="data")), root)
    assert [mount.source for mount in mounts] == [root / "a/b", root / "_pvc/data"]
    assert all(mount.source.is_dir() for mount in mounts)


def test_a_claim_that_must_be_there_already_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        volumes.resolve((volume(claim="data", make_claim=False),), tmp_path)
    assert refused.value.code == "VOLUME::PVC_NOT_FOUND"
    assert list(tmp_path.iterdir()) == []
    volumes.claim_directory("data", tmp_path).mkdir(parents=True)
    assert len(volumes.resolve((volume(claim="data", make_claim=False),), tmp_path)) == 1


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"host_path": "/etc"}, "VOLUME::HOST_PATH_NOT_ALLOWED"),
        ({"host_path": "{root}-more"}, "VOLUME::HOST_PATH_NOT_ALLOWED"),
        ({"host_path": "{root}/../etc"}, "VOLUME::INVALID_HOST_PATH"),
        ({"host_path": "{root}/"}, "VOLUME::INVALID_HOST_PATH"),
        ({"host_path": "{root}", "sub_path": "a/../../x"}, "VOLUME::INVALID_SUB_PATH"),
        ({"host_path": "{root}", "sub_path": "/etc"}, "VOLUME::INVALID_SUB_PATH"),
        ({"claim": "../x"}, "VOLUME::INVALID_PVC_NAME"),
        ({"claim": "x", "mount_path": "/"}, "VOLUME::INVALID_MOUNT_PATH"),
    ],
)
def test_volumes_outside_of_it_are_refused(tmp_path: Path, fields: dict[str, str], code: str) -> None:
    given = {name: value.replace("{root}", str(tmp_path)) for name, value in fields.items()}
    with pytest.raises(Refused) as refused:
        volumes.resolve((volume(**given),), tmp_path)
    assert refused.value.code == code


def test_a_command_is_read() -> None:
    request = parse_command(b'{"Command":"x","timeout":5,"envs":{"A":null},"nonsense":1} behind')
    assert (request.command, request.timeout, request.envs, request.background) == ("x", 5, {"A": ""}, False)
    assert parse_command(b'{"command":"\\ud800"}').command == "\ufffd"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "EOF"),
        (b"{", "unexpected EOF"),
        (b"{x", "invalid character 'x' looking for beginning of object key string"),
        (b"[]", "cannot unmarshal array into Go value of type model.RunCommandRequest"),
        (b"null", "'Command' failed on the 'required' tag"),
        (b'{"command":5}', "cannot unmarshal number into Go struct field RunCommandRequest.command of type string"),
        (b'{"command":"x","timeout":1.5}', "cannot unmarshal number 1.5 into Go struct field"),
        (b'{"command":"x","timeout":-1}', "'TimeoutMs' failed on the 'gte' tag"),
        (b'{"command":"x","gid":1}', "uid is required when gid is provided"),
        (b'{"command":"x","uid":-1}', "cannot unmarshal number -1"),
        (b'{"command":"x","background":1}', "of type bool"),
        (b'{"command":"x","envs":[1]}', "of type map"),
    ],
)
def test_a_bad_command_is_refused_in_execds_words(body: bytes, message: str) -> None:
    with pytest.raises(BadCommand) as refused:
        parse_command(body)
    assert message in str(refused.value)
