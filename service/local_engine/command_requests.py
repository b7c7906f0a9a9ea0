"""What execd accepts in `POST /command`: a pure check of the body, with execd's own wording."""

from __future__ import annotations

from typing import Any

from . import go_json, wire
from .execd import CommandRequest

_MAXIMUM = {"timeout": 2**63 - 1, "uid": 2**32 - 1, "gid": 2**32 - 1}
_GO_TYPES = {
    "command": "string",
    "cwd": "string",
    "background": "bool",
    "timeout": "int64",
    "uid": "uint32",
    "gid": "uint32",
}


class BadCommand(ValueError):
    """400 `INVALID_REQUEST_BODY`; the message is execd's. Nothing was run."""


def parse_command(body: bytes) -> CommandRequest:
    """Check a submit; unknown fields are ignored, names are matched in any letter case. Raises `BadCommand`.

    The working directory is checked by the caller, who knows the sandbox.
    """
    sent = _decode(body)
    request = CommandRequest(
        command=_text(sent, "command"),
        cwd=_text(sent, "cwd"),
        background=_typed(sent, "background", bool) or False,
        timeout=_number(sent, "timeout") or 0,
        uid=_number(sent, "uid"),
        gid=_number(sent, "gid"),
        envs=_envs(sent),
    )
    if not request.command:
        raise _failed_check("Command", "required")
    if request.timeout < 0:
        raise _failed_check("TimeoutMs", "gte")
    if request.gid is not None and request.uid is None:
        raise BadCommand("invalid request, validation error uid is required when gid is provided")
    return request


def _failed_check(name: str, tag: str) -> BadCommand:
    return BadCommand(
        f"invalid request, validation error Key: 'RunCommandRequest.{name}' "
        f"Error:Field validation for '{name}' failed on the '{tag}' tag"
    )


def _unreadable(text: str) -> BadCommand:
    return BadCommand(f"error parsing request, MAYBE invalid body format. {text}")


def _decode(body: bytes) -> dict[str, Any]:
    """The first JSON value of the body; what follows it is not looked at."""
    try:
        sent = go_json.container(go_json.first_value(body), dict, "model.RunCommandRequest")
    except go_json.Bad as error:
        raise _unreadable(str(error)) from error
    known = set(_GO_TYPES) | {"envs"}
    return {key if key in known else key.lower(): value for key, value in sent.items()}


def _mismatch(value: Any, field: str, wanted: str) -> BadCommand:
    return _unreadable(str(go_json.mismatch(value, f"RunCommandRequest.{field}", wanted)))


def _typed(sent: dict[str, Any], name: str, kind: type) -> Any:
    value = sent.get(name)
    if value is not None and type(value) is not kind:
        raise _mismatch(value, name, _GO_TYPES[name])
    return value


def _text(sent: dict[str, Any], name: str) -> str:
    return wire.without_surrogates(_typed(sent, name, str) or "")


def _number(sent: dict[str, Any], name: str) -> int | None:
    value: int | None = _typed(sent, name, int)
    if value is not None and (value > _MAXIMUM[name] or (value < 0 and name != "timeout")):
        raise _mismatch(value, name, _GO_TYPES[name])
    return value


def _envs(sent: dict[str, Any]) -> dict[str, str]:
    value = sent.get("envs")
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _mismatch(value, "envs", "map[string]string")
    for text in value.values():
        if text is not None and not isinstance(text, str):
            raise _mismatch(text, "envs", "string")
    return {wire.without_surrogates(k): wire.without_surrogates(v or "") for k, v in value.items()}
