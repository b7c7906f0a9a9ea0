"""What the lifecycle server accepts in `POST /v1/sandboxes`: a pure check of the decoded JSON.

Unknown fields are ignored, as by the real server: a misspelt field is silence, not an error. Errors carry the
recorded codes and shapes (`engine-transcripts`, the `create, ...` exchanges).
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from .replies import Invalid, Refused

MINIMUM_TIMEOUT = 60
RESERVED_PREFIX = "opensandbox.io/"
LABEL_LENGTH, PREFIX_LENGTH = 63, 253

_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VOLUME_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_CPU = re.compile(r"\s*([0-9]+(\.[0-9]+)?m?)\s*")
_MEMORY = re.compile(r"\s*([0-9]{1,18})([kmgti]i?|[kmgti]?b)?\s*", re.IGNORECASE)
_UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class VolumeRequest:
    """One entry of `volumes`; exactly one of `host_path` and `claim` is set."""

    name: str
    mount_path: str
    host_path: str | None = None
    claim: str | None = None
    make_claim: bool = True
    sub_path: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A create that may be carried out. `timeout` in seconds, None: never expires. `memory` in bytes."""

    image: str
    entrypoint: tuple[str, ...]
    timeout: int | None = None
    memory: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, str] = field(default_factory=dict)
    volumes: tuple[VolumeRequest, ...] = ()
    limits: dict[str, str] = field(default_factory=dict)


def parse_json(body: bytes) -> Any:
    """The body as JSON. Raises `Invalid`, as the real server's framework words it."""
    try:
        return json.loads(body)
    except (ValueError, UnicodeDecodeError) as error:
        position = getattr(error, "pos", 0)
        text = getattr(error, "msg", "invalid encoding")
        raise Invalid("json_invalid", ["body", position], "JSON decode error", {}, error=text) from error


def parse_create(body: bytes, maximum_timeout: int, *, any_limits: bool = False) -> CreateRequest:
    """Check a create. Raises `Invalid` (422) for what breaks the schema, `Refused` (400) for the rest.

    `any_limits`: what is no quantity is let through, as the Kubernetes runtime does.
    """
    sent = parse_json(body)
    if not isinstance(sent, dict):
        raise Invalid("model_attributes_type", ["body"], "Input should be a valid dictionary", sent)
    image = _image(sent)
    timeout = _timeout(sent)
    limits = _strings(sent, "resourceLimits")
    env = _strings(sent, "env", nullable=True)
    metadata = _strings(sent, "metadata") or {}
    entrypoint = _entrypoint(sent)
    volumes = _volumes(sent)
    if image is None:
        raise _value_error(sent, "Exactly one of image or snapshotId must be provided.")
    if not entrypoint:
        raise _value_error(sent, "Entrypoint is required when image is provided.")
    if limits is None:
        raise _value_error(sent, "resourceLimits is required when poolRef is not provided.")
    if timeout is not None and timeout > maximum_timeout:
        message = f"Sandbox timeout {timeout}s exceeds configured maximum of {maximum_timeout}s."
        raise Refused(400, "SANDBOX::INVALID_PARAMETER", message)
    check_labels(metadata)
    memory = None if any_limits else _limits(limits)
    return CreateRequest(image, tuple(entrypoint), timeout, memory, env or {}, metadata, volumes, limits)


def check_labels(metadata: dict[str, str]) -> None:
    """Kubernetes' label rules, and the engine's own prefix. Raises `Refused`."""
    for key, value in metadata.items():
        if key.startswith(RESERVED_PREFIX):
            raise Refused(
                400,
                "SANDBOX::INVALID_METADATA_LABEL",
                f"Metadata key '{key}' uses the reserved prefix '{RESERVED_PREFIX}'. Keys under this prefix are "
                "managed by the system and cannot be set via metadata.",
            )
        if not is_label_key(key):
            raise Refused(
                400,
                "SANDBOX::INVALID_METADATA_LABEL",
                f"Metadata key '{key}' is invalid: must be either a name or a DNS-subdomain prefix and name separated "
                "by /, where the name is up to 63 characters and matches "
                "[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?, and the optional prefix is a valid DNS subdomain up to "
                "253 characters.",
            )
        if not is_label_value(value):
            raise Refused(
                400,
                "SANDBOX::INVALID_METADATA_LABEL",
                f"Metadata value '{value}' is invalid: must be 63 characters or less, start/end with an alphanumeric "
                "character, and contain only alphanumeric, '-', '_', or '.' characters.",
            )


def is_label_key(key: str) -> bool:
    """A name, or a DNS subdomain (at most 253 characters), `/` and a name (at most 63)."""
    prefix, slash, name = key.rpartition("/") if key.count("/") == 1 else ("", "", key)
    if slash and (len(prefix) > PREFIX_LENGTH or not _LABEL_PREFIX.fullmatch(prefix)):
        return False
    return len(name) <= LABEL_LENGTH and _LABEL_NAME.fullmatch(name) is not None


def is_label_value(value: str) -> bool:
    """Empty, or at most 63 characters, alphanumeric at both ends, `-`, `_` and `.` in between."""
    return not value or (len(value) <= LABEL_LENGTH and _LABEL_NAME.fullmatch(value) is not None)


def _value_error(sent: Any, message: str, location: list[str | int] | None = None) -> Invalid:
    return Invalid("value_error", location or ["body"], f"Value error, {message}", sent, error={})


def _image(sent: dict[str, Any]) -> str | None:
    image = sent.get("image")
    if image is None:
        return None
    if not isinstance(image, dict):
        raise Invalid("model_attributes_type", ["body", "image"], "Input should be a valid dictionary", image)
    if "uri" not in image:
        raise Invalid("missing", ["body", "image", "uri"], "Field required", image)
    if not isinstance(image["uri"], str):
        raise Invalid("string_type", ["body", "image", "uri"], "Input should be a valid string", image["uri"])
    return image["uri"].strip() or None


def _timeout(sent: dict[str, Any]) -> int | None:
    given = sent.get("timeout")
    if given is None:
        return None
    try:
        if isinstance(given, str | bool) or not isinstance(given, int | float) or given != int(given):
            given_number = int(given) if isinstance(given, str | bool) else None
        else:
            given_number = int(given)
    except (ValueError, OverflowError):
        given_number = None
    if given_number is None:
        kind = "int_from_float" if isinstance(given, float) else "int_type"
        raise Invalid(kind, ["body", "timeout"], "Input should be a valid integer", given)
    if given_number < MINIMUM_TIMEOUT:
        message = f"Input should be greater than or equal to {MINIMUM_TIMEOUT}"
        raise Invalid("greater_than_equal", ["body", "timeout"], message, given, ge=MINIMUM_TIMEOUT)
    return given_number


def _strings(sent: dict[str, Any], name: str, nullable: bool = False) -> dict[str, str] | None:
    given = sent.get(name)
    if given is None:
        return None
    if not isinstance(given, dict):
        raise Invalid("dict_type", ["body", name], "Input should be a valid dictionary", given)
    for key, value in given.items():
        if not isinstance(value, str) and not (nullable and value is None):
            raise Invalid("string_type", ["body", name, key], "Input should be a valid string", value)
    return {key: value or "" for key, value in given.items()}


def _entrypoint(sent: dict[str, Any]) -> list[str]:
    given = sent.get("entrypoint")
    if given is None:
        return []
    if not isinstance(given, list):
        raise Invalid("list_type", ["body", "entrypoint"], "Input should be a valid list", given)
    for index, word in enumerate(given):
        if not isinstance(word, str):
            raise Invalid("string_type", ["body", "entrypoint", index], "Input should be a valid string", word)
    if not given:
        message = "List should have at least 1 item after validation, not 0"
        raise Invalid("too_short", ["body", "entrypoint"], message, given, min_length=1)
    return given


def _limits(limits: dict[str, str]) -> int | None:
    """Memory in bytes. Raises `Refused` for a cpu or memory that is no positive quantity."""
    cpu, memory = limits.get("cpu"), limits.get("memory")
    if cpu is not None and not (_CPU.fullmatch(cpu) and float(cpu.strip().rstrip("m")) > 0):
        raise _not_a_limit("cpu", cpu)
    if memory is None:
        return None
    match = _MEMORY.fullmatch(memory)
    if match is None or int(match[1]) <= 0:
        raise _not_a_limit("memory", memory)
    unit = (match[2] or "").lower()
    power = _UNITS[unit.rstrip("b").rstrip("i")] if unit not in ("b", "") else 0
    return int(match[1]) * int((1024 if unit.endswith("i") else 1000) ** power)


def _not_a_limit(name: str, given: str) -> Refused:
    message = f"Invalid resourceLimits.{name}: '{given}'; must resolve to a positive resource limit."
    return Refused(400, "SANDBOX::INVALID_PARAMETER", message)


def _volumes(sent: dict[str, Any]) -> tuple[VolumeRequest, ...]:
    given = sent.get("volumes")
    if given is None:
        return ()
    if not isinstance(given, list):
        raise Invalid("list_type", ["body", "volumes"], "Input should be a valid list", given)
    found = tuple(_volume(volume, index) for index, volume in enumerate(given))
    names = [volume.name for volume in found]
    for name in names:
        if names.count(name) > 1:
            message = f"Duplicate volume name '{name}'. Each volume must have a unique name."
            raise Refused(400, "VOLUME::DUPLICATE_NAME", message)
    return found


def _volume(given: Any, index: int) -> VolumeRequest:
    place: list[str | int] = ["body", "volumes", index]
    if not isinstance(given, dict):
        raise Invalid("model_attributes_type", place, "Input should be a valid dictionary", given)
    for name in ("name", "mountPath"):
        if name not in given:
            raise Invalid("missing", [*place, name], "Field required", given)
        if not isinstance(given[name], str):
            raise Invalid("string_type", [*place, name], "Input should be a valid string", given[name])
    if not _VOLUME_NAME.fullmatch(given["name"]) or len(given["name"]) > LABEL_LENGTH:
        raise Invalid("string_pattern_mismatch", [*place, "name"], "String should match a label", given["name"])
    if not given["mountPath"].startswith("/"):
        message = "String should match pattern '^/.*'"
        raise Invalid("string_pattern_mismatch", [*place, "mountPath"], message, given["mountPath"])
    host, claim = given.get("host"), given.get("pvc")
    if (host is None) == (claim is None):
        amount = "none was" if host is None else "multiple were"
        raise _value_error(
            given, f"Exactly one backend (host, pvc, ossfs) must be specified, but {amount} provided.", place
        )
    path = host.get("path") if isinstance(host, dict) else None
    named = claim.get("claimName") if isinstance(claim, dict) else None
    if not isinstance(path if claim is None else named, str):
        backend = ["host", "path"] if claim is None else ["pvc", "claimName"]
        raise Invalid("missing", [*place, *backend], "Field required", given)
    sub_path = given.get("subPath") or ""
    if not isinstance(sub_path, str):
        raise Invalid("string_type", [*place, "subPath"], "Input should be a valid string", sub_path)
    make = not isinstance(claim, dict) or claim.get("createIfNotExists") is not False
    return VolumeRequest(
        given["name"], given["mountPath"], path, named, make, sub_path, read_only=given.get("readOnly") is True
    )
