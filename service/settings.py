"""Settings: environment variables, and the same names in the TOML file named by ``ONCEBOX_CONFIG``.

The environment wins over the file, and an empty variable counts as not set. Durations are seconds, sizes are
bytes. Every wrong value is reported before anything starts, in one ``SettingsError`` that names each variable
and says what was expected; a value that may hold a secret is never repeated.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
import tomllib
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import msgspec

from service import blocking
from service.messages import IMAGE, IMAGE_REFERENCE, MAX_IMAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

PREFIX = "ONCEBOX_"

DEFAULT_WORKSPACE_DIRS = (
    ("workspace", "/workspace"),
    ("claude", "/root/.claude"),
    ("codex", "/root/.codex"),
    ("gemini", "/root/.gemini"),
)

DNS_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
"""What names in Kubernetes are made of, with dots in between."""

MOST_SECONDS = 1e9
"""Of any duration: some thirty years. What timers and Redis make of more is no duration."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

log = logging.getLogger("oncebox")


class SettingsError(Exception):
    """Settings that the service must not start with; the message is for the person who starts it."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One replica's settings; each is the variable ``ONCEBOX_`` + its name in capitals."""

    redis_url: str = "memory://"
    """``memory://`` (in the process, for one replica), ``redis://``, ``rediss://``,
    ``redis+sentinel://HOST,HOST/NAME/DB`` or ``redis+cluster://HOST,HOST``."""
    engine_url: str = "local://"
    """``local://`` (the local engine as a child process) or ``http(s)://HOST:PORT`` of an OpenSandbox-compatible
    engine, the local engine run apart (``oncebox engine``) included."""
    engine_api_key: str | None = None
    """What the engine is sent as ``OPEN-SANDBOX-API-KEY``."""
    engine_proxy: Literal["auto", "always", "never"] = "auto"
    """How a sandbox's daemon is reached: ``always`` through the engine's proxy, ``never`` (directly), or ``auto``:
    directly where that works."""
    engine_runtime: Literal["auto", "docker", "kubernetes"] = "auto"
    """What the engine runs sandboxes with: only Kubernetes expands ``$`` in their environment and entrypoint, so it is
    escaped there, and there alone. ``auto``: learnt from the engine's answers; where they do not tell, a value with
    ``$(`` or ``$$`` is refused."""
    bind: str = "127.0.0.1:8700"
    """``HOST:PORT`` to listen on."""
    tenants: str | None = None
    """Path of the tenants file. None: no keys, one tenant, loopback only."""
    secret: str | None = None
    """Signs the metadata by which sandboxes are found again; the same on every replica."""
    image: str = "python:3.12"
    """The image of a sandbox that is created without one."""
    claim_replicas: int = 0
    """Redis replicas that must acknowledge a claim before anything is sent to the engine."""
    engine_networks: tuple[Network, ...] = ()
    """Networks (CIDRs separated by commas) that the addresses of sandboxes' daemons must lie in; empty: anywhere."""
    url: str | None = None
    """Where the command line and ``Client()`` find the service."""
    api_key: str | None = None
    """What the command line and ``Client()`` send."""
    fence_dir: str = "/tmp/.oncebox"  # noqa: S108 - inside the sandbox
    """Directory inside the sandbox in which fences stand."""
    volume: str | None = None
    """``host:/path`` or ``pvc:NAME``: what holds the owners' directories. Not set: under the local engine's root with
    ``local://``; elsewhere ``workspace_owner`` is refused."""
    workspace_dirs: tuple[tuple[str, str], ...] = DEFAULT_WORKSPACE_DIRS
    """``dir:mount`` pairs separated by commas: a directory under the owner's, and where it is mounted."""
    claim_wait: float = 20.0
    """Seconds for which a request waits for another one with its key."""
    lease: float = 15.0
    """Seconds after which a replica that does not renew its claim counts as dead."""
    retention: float = 86_400.0
    """Seconds for which keys and results are kept after the end."""
    engine_interval: float = 3.0
    """Seconds between two looks at a watched job when 500 jobs are active; fewer jobs are looked at more often,
    down to 0.5 s."""
    record_output: int = 262_144
    """Bytes of a job's output that are recorded: its end."""
    record_budget: int = 1_073_741_824
    """Bytes of recorded output over all jobs, as kept (compressed); above it the oldest go."""
    max_file: int = 4_294_967_296
    """Bytes of one file, or of one archive, that is written to a sandbox."""
    shutdown_grace: float = 30.0
    """Seconds that a stopping replica has for what it owns."""
    shutdown_delay: float = -1.0
    """Seconds for which a replica still serves after it stopped being ready.

    Not set: 5, or 0 where there is no other replica (``standalone``)."""
    metrics_token: str | None = None
    """Bearer token for ``/metrics``; not set: from loopback only."""
    console: bool = True
    """Serve the page for people, ``/console``; 0: there is none."""
    insecure: bool = False
    """Bind to other addresses than loopback without keys."""

    def __post_init__(self) -> None:
        if self.shutdown_delay < 0:
            msgspec.structs.force_setattr(self, "shutdown_delay", 0.0 if self.standalone else 5.0)

    @property
    def standalone(self) -> bool:
        """The store or the engine lives and dies with this process, so it can't share work with others."""
        return self.redis_url.startswith("memory:") or self.engine_url.startswith("local:")

    @property
    def address(self) -> tuple[str, int]:
        """Host (IPv6 without brackets) and port of ``bind``."""
        host, _, port = self.bind.rpartition(":")
        return host.removeprefix("[").removesuffix("]"), int(port)

    @property
    def has_keys(self) -> bool:
        """Callers need an API key."""
        return self.tenants is not None

    def check_serving(self, workers: int) -> None:
        """Raises ``SettingsError`` where ``workers`` processes must not serve with these settings."""
        host, _ = self.address
        if not (is_loopback(host) or self.has_keys or self.insecure):
            raise SettingsError(
                f"ONCEBOX_BIND is not a loopback address ({host}), and there are no keys (ONCEBOX_TENANTS): "
                "everybody who reaches it could run commands. ONCEBOX_INSECURE=1 allows it all the same."
            )
        if workers < 1:
            raise SettingsError("--workers must be at least 1.")
        if workers > 1 and self.standalone:
            raise SettingsError(
                "--workers above 1 needs a Redis server (ONCEBOX_REDIS_URL) and an engine "
                "(ONCEBOX_ENGINE_URL) that the workers share; memory:// and local:// live in one process."
            )


def is_loopback(host: str) -> bool:
    """``host`` is a name or an address of this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# -- reading one value: each returns it, or raises ValueError with what was expected


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    return value


def _one_of(*choices: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError("one of " + ", ".join(choices))
        return str(value)

    return read


def _seconds(least: float) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        expected = ValueError(f"a number of seconds, at least {least:g} and at most {MOST_SECONDS:g}")
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise expected
        if isinstance(value, str) and not re.fullmatch(
            r"\s*[-+]?[0-9.]+(e[-+]?[0-9]+)?\s*", value, re.ASCII | re.IGNORECASE
        ):
            raise expected
        try:
            number = float(value)
        except (ValueError, OverflowError):
            raise expected from None
        if not least <= number <= MOST_SECONDS:  # nor is a NaN
            raise expected
        return number

    return read


def _count(what: str, least: int = 0) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        digits = str(value).strip()
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,15}", digits) or int(digits) < least:
            raise ValueError(f"a whole number of {what}, at least {least}")
        return int(digits)

    return read


def _flag(value: Any) -> bool:
    known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
    word = str(value).strip().lower()
    if word not in known:
        raise ValueError("1 or 0")
    return known[word]


def _redis_url(value: Any) -> str:
    text = _text(value)
    if text == "memory://":
        return text
    expected = ValueError("memory://, redis://, rediss://, redis+sentinel:// or redis+cluster://, with a host")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise expected from None
    schemes = {"redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"}
    if parts.scheme not in schemes or not parts.netloc.rpartition("@")[2]:
        raise expected
    return text


def _secret(value: Any) -> str:
    text = _text(value)
    if not re.fullmatch(r"[!-~]+", text):
        raise ValueError("visible ASCII characters")
    return text


def _http_url(expected: str, *others: str) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = _text(value)
        if text in others:
            return text
        try:
            parts = urlsplit(text)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            usable = usable and "@" not in parts.netloc and not parts.query and not parts.fragment
        except ValueError:
            usable = False
        if not usable:
            raise ValueError(expected)
        return text.rstrip("/")

    return read


def _bind(value: Any) -> str:
    text = _text(value)
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%\w]+\]|[^\s:/\[\]]+):([0-9]{1,5})", text)
    if match is None or int(match[2]) > 65_535:
        raise ValueError("HOST:PORT, such as 127.0.0.1:8700 or [::1]:8700")
    return text


def _words(value: Any) -> list[str]:
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [item.strip() for item in value]
    return [word for word in re.split(r"[,\s]+", _text(value)) if word]


def _networks(value: Any) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(word) for word in _words(value))
    except ValueError:
        raise ValueError("CIDRs separated by commas, such as 10.0.0.0/8,fd00::/8") from None


def _absolute(value: Any) -> str:
    text = _text(value)
    if not re.fullmatch(r"(/(?!\.{1,2}(/|$))[^/\x00-\x1f]+)+", text):
        raise ValueError("an absolute path")
    return text


def _image(value: Any) -> str:
    text = _text(value)
    if len(text) > MAX_IMAGE or not re.fullmatch(IMAGE, text):
        raise ValueError(f"an {IMAGE_REFERENCE}")
    return text


def _volume(value: Any) -> str:
    text = _text(value)
    kind, _, name = text.partition(":")
    if kind == "host" and name.startswith("/"):
        return text
    if kind == "pvc" and len(name) <= 253 and re.fullmatch(rf"{DNS_LABEL}(\.{DNS_LABEL})*", name):
        return text
    raise ValueError("host:/path or pvc:NAME")


def _workspace_dirs(value: Any) -> tuple[tuple[str, str], ...]:
    expected = ValueError("dir:mount pairs separated by commas, such as workspace:/workspace")
    pairs = []
    for word in _words(value):
        directory, _, mount = word.partition(":")
        if not re.fullmatch(r"(?!\.{1,2}$)[A-Za-z0-9._-]{1,64}", directory):
            raise expected
        try:
            pairs.append((directory, _absolute(mount)))
        except ValueError:
            raise expected from None
        if ":" in mount:  # Kubernetes takes none such
            raise expected
    if not pairs or any(len(set(side)) != len(pairs) for side in zip(*pairs, strict=True)):
        raise expected
    return tuple(pairs)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "redis_url": _redis_url,
    "engine_url": _http_url("local:// or http(s)://host:port", "local://"),
    "engine_api_key": _secret,
    "engine_proxy": _one_of("auto", "always", "never"),
    "engine_runtime": _one_of("auto", "docker", "kubernetes"),
    "bind": _bind,
    "tenants": _text,
    "secret": _text,
    "image": _image,
    "claim_replicas": _count("replicas"),
    "engine_networks": _networks,
    "url": _http_url("http(s)://host:port"),
    "api_key": _secret,
    "fence_dir": _absolute,
    "volume": _volume,
    "workspace_dirs": _workspace_dirs,
    "claim_wait": _seconds(0),
    "lease": _seconds(1),
    "retention": _seconds(1),
    "engine_interval": _seconds(0.05),
    "record_output": _count("bytes"),
    "record_budget": _count("bytes"),
    "max_file": _count("bytes"),
    "shutdown_grace": _seconds(0),
    "shutdown_delay": _seconds(0),
    "metrics_token": _secret,
    "console": _flag,
    "insecure": _flag,
}
_SECRET = frozenset({"redis_url", "engine_url", "engine_api_key", "secret", "url", "api_key", "metrics_token"})
"""Never repeated in a message: URLs may carry a password."""


def load(environ: Mapping[str, str] | None = None, overrides: Mapping[str, Any] | None = None) -> Settings:
    """The settings of this process. ``overrides`` (by attribute, such as ``bind``) win over everything.

    Raises ``SettingsError``; unknown names are warned about in the log.
    """
    environ = os.environ if environ is None else environ
    found: dict[str, tuple[str, Any]] = {}
    unknown: list[str] = []
    config = environ.get(PREFIX + "CONFIG")
    for name, value in (_file(config) if config else {}).items():
        _note(found, unknown, name, value, name)
    for name, value in environ.items():
        if name.startswith(PREFIX) and value and name != PREFIX + "CONFIG" and not name.startswith("ONCEBOX_TEST_"):
            _note(found, unknown, name, value, name)
    for name, value in (overrides or {}).items():
        found[name] = (PREFIX + name.upper(), value)
    if unknown:
        log.warning("unknown settings, ignored: %s", ", ".join(sorted(unknown)))
    return Settings(**_read(found))


def _note(found: dict[str, tuple[str, Any]], unknown: list[str], name: str, value: Any, shown: str) -> None:
    attribute = name.lower().removeprefix(PREFIX.lower())
    if attribute in _READERS:
        found[attribute] = (PREFIX + attribute.upper(), value)
    else:
        unknown.append(shown)


def _file(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(blocking.read_file(path))
    except OSError as error:
        raise SettingsError(f"ONCEBOX_CONFIG: {path} can't be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise SettingsError(f"ONCEBOX_CONFIG: {path} is not a TOML file") from None


def _read(found: Mapping[str, tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    wrong = []
    for attribute, (name, value) in found.items():
        try:
            values[attribute] = _READERS[attribute](value)
        except ValueError as expected:
            got = "" if attribute in _SECRET else f", not {str(value)[:80]!r}"
            wrong.append(f"{name} must be {expected}{got}")
    if wrong:
        raise SettingsError("; ".join(wrong))
    return values
