"""What a request must be like beyond its types. Pure; each refusal names the field."""

from __future__ import annotations

import base64
import binascii
import re
import shlex
from collections.abc import Callable, Mapping, Sequence

from service.core.model.labels import is_reserved
from service.errors import InvalidRequest, PayloadTooLarge
from service.messages import CPU, IMAGE, IMAGE_REFERENCE, MAX_COMMAND, MEMORY, Encoding, Resources

MAX_METADATA = 64
"""Metadata entries of one sandbox or job."""
MAX_ENV = 1024
"""Environment variables of one request."""

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")
_VARIABLE = re.compile(r"[!-<>-~ ]+")
"""Printable ASCII but ``=``: what Kubernetes takes for the name of a variable, since 1.30."""
_OWNER = re.compile(r"[A-Za-z0-9._@-]{1,128}")


def owner(value: str | None) -> str | None:
    """An owner is one path segment: letters, digits, ``.``, ``_``, ``-``, ``@``; never ``.`` or ``..``."""
    if value is None:
        return None
    if not _OWNER.fullmatch(value) or value in (".", ".."):
        raise InvalidRequest.of(
            "workspace_owner", "must be 1 to 128 letters, digits, '.', '_', '-' or '@', and not '.' or '..'"
        )
    return value


def metadata(values: Mapping[str, str] | None) -> dict[str, str]:
    """Kubernetes labels; reserved keys are dropped, since the server alone writes them."""
    kept = {}
    for key, value in (values or {}).items():
        if is_reserved(key):
            continue
        prefix, slash, name = key.rpartition("/")
        if not _NAME.fullmatch(name) or (slash and (len(prefix) > 253 or not _PREFIX.fullmatch(prefix))):
            raise InvalidRequest.of(
                f"metadata.{shown(key)}",
                "is no label key (an optional DNS prefix and '/', then 1 to 63 letters, digits, '-', '_', '.')",
            )
        if prefix == "opensandbox.io" or prefix.endswith(".opensandbox.io"):
            raise InvalidRequest.of(f"metadata.{shown(key)}", "has the engine's own prefix")
        if value and not _NAME.fullmatch(value):
            raise InvalidRequest.of(
                f"metadata.{shown(key)}",
                "must be at most 63 letters, digits, '-', '_', '.', and begin and end with a letter or digit",
            )
        kept[key] = value
    if len(kept) > MAX_METADATA:
        raise InvalidRequest.of("metadata", f"has more than {MAX_METADATA} entries")
    return kept


def metadata_filter(wanted: Mapping[str, str]) -> dict[str, str]:
    """Pairs that a list is filtered by: labels as in ``metadata``. Reserved keys are not a caller's to ask for."""
    for key in wanted:
        if is_reserved(key):
            raise InvalidRequest.of("metadata", f"{shown(key)} is the server's own")
    return metadata(wanted)


def resources(wanted: Resources | None) -> Resources:
    """Quantities that every runtime of the engine reads alike (see ``service.messages.MEMORY``)."""
    if wanted is None:
        return Resources()
    if wanted.cpu is not None and not re.fullmatch(CPU, wanted.cpu):
        raise InvalidRequest.of(
            "resources.cpu", "must be CPUs above 0 to three places ('2', '0.5'), or whole thousandths ('500m')"
        )
    if wanted.memory is not None and not re.fullmatch(MEMORY, wanted.memory):
        raise InvalidRequest.of(
            "resources.memory",
            "must be a whole number of bytes above 0, with k, M, G, T or Ki, Mi, Gi, Ti ('512Mi', '1536Mi', '4Gi')",
        )
    return wanted


def image(value: str | None) -> str | None:
    """An image's reference: ``[registry[:port]/]name[:tag][@digest]``."""
    if value is not None and not re.fullmatch(IMAGE, value):
        raise InvalidRequest.of("image", f"is no {IMAGE_REFERENCE}")
    return value


def sandbox_env(values: Mapping[str, str] | None, *, reserved: Callable[[str], bool]) -> dict[str, str]:
    """The environment of a sandbox: as ``env``, and names that every runtime takes."""
    checked = env(values, reserved=reserved)
    for name in checked:
        if not _VARIABLE.fullmatch(name):
            raise InvalidRequest.of(f"env.{shown(name)}", "must have a name of printable ASCII without '='")
    return checked


def expandable(entrypoint: Sequence[str], env: Mapping[str, str]) -> str | None:
    """The first field whose value Kubernetes would read otherwise than it is written, and Docker would not."""
    named = [*((f"entrypoint[{n}]", text) for n, text in enumerate(entrypoint)), *_named_variables(env)]
    return next((field for field, text in named if "$(" in text or "$$" in text), None)


def _named_variables(env: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(f"env.{shown(name)}", value) for name, value in env.items()]


def env(values: Mapping[str, str] | None, *, reserved: Callable[[str], bool]) -> dict[str, str]:
    """Names without ``=`` and NUL, values without NUL and no longer than a command may be."""
    checked = dict(values or {})
    if len(checked) > MAX_ENV:
        raise InvalidRequest.of("env", f"has more than {MAX_ENV} entries")
    for name, value in checked.items():
        if not name or "=" in name or "\0" in name or _surrogate(name):
            raise InvalidRequest.of("env", "has a name that is empty or contains '=' or NUL")
        if reserved(name):
            raise InvalidRequest.of(f"env.{shown(name)}", "is used by Oncebox itself")
        if "\0" in value or _surrogate(value):
            raise InvalidRequest.of(f"env.{shown(name)}", "contains NUL or a lone surrogate")
        if len(value.encode()) > MAX_COMMAND:
            raise InvalidRequest.of(f"env.{shown(name)}", f"is longer than {MAX_COMMAND} bytes")
    return checked


def command(text: str | None, argv: list[str] | None) -> str:
    """What is to be run: a text for the shell, or words, quoted as a shell would have to quote them. Exactly one."""
    if text is not None and argv is not None:
        raise InvalidRequest.of("argv", "can't be sent together with command")
    if text is None and argv is None:
        raise InvalidRequest.of("command", "is missing (or argv)")
    return _words(argv) if text is None else _fitting("command", _text("command", text))


def _words(argv: list[str] | None) -> str:
    for number, word in enumerate(argv or []):
        path(f"argv.{number}", word)
    if not argv or not argv[0] or "=" in argv[0]:  # `env`, which may start it, would take a `=` for a variable
        raise InvalidRequest.of("argv.0", "must be the name of a program, without '='")
    return _fitting("argv", shlex.join(argv))


def _text(field: str, text: str) -> str:
    """A text that is not blank."""
    if not text.strip():
        raise InvalidRequest.of(field, "is empty")
    path(field, text)
    return text


def _fitting(field: str, text: str) -> str:
    """As it is sent: in one shell argument."""
    if len(text.encode()) > MAX_COMMAND:
        raise PayloadTooLarge(
            f"{field}: is longer than {MAX_COMMAND} bytes; put it into a file in the sandbox, or into stdin",
            errors=InvalidRequest.of(field, f"is longer than {MAX_COMMAND} bytes").errors,
        )
    return text


def stdin(text: str | None, encoding: Encoding | None, path: str | None) -> bytes | None:
    """The bytes that a command is to read. None: none are sent."""
    if text is None:
        if encoding is not None:
            raise InvalidRequest.of("stdin_encoding", "says how stdin is encoded, and there is none")
        return None
    if path is not None:
        raise InvalidRequest.of("stdin_path", "can't be sent together with stdin")
    try:
        return base64.b64decode(text, validate=True) if encoding is Encoding.BASE64 else text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest.of("stdin", "contains a lone surrogate") from None
    except (binascii.Error, ValueError):
        raise InvalidRequest.of("stdin", "is not base64 (RFC 4648, with padding and without line ends)") from None


def path(field: str, value: str | None) -> str | None:
    """A path without NUL."""
    if value is not None and ("\0" in value or _surrogate(value)):
        raise InvalidRequest.of(field, "contains NUL or a lone surrogate")
    return value


def texts(field: str, values: list[str] | None) -> list[str] | None:
    """A list of strings without NUL."""
    for value in values or []:
        path(field, value)
    return values


def shown(text: str) -> str:
    """Untrusted text for a message: short, printable."""
    return "".join(char if char.isprintable() else "?" for char in text[:80])


def _surrogate(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)
