"""One request and what is known of it so far, shared by the middlewares and the handlers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from service import context
from service.api.caller import Caller, CallerGone
from service.api.observing import RequestObserver, Wait
from service.core.model.identity import MadeKey, parse_command_id, random_token
from service.errors import InvalidIdempotencyKey, InvalidRequest, JobNotFound, SandboxNotFound

if TYPE_CHECKING:
    import asyncio

    from starlette.types import Receive, Scope

    from service.core.app import Core
    from service.core.limits.room import Share

_SANE_REQUEST_ID = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._~+/=:@-]{0,127}")
_VISIBLE_ASCII = re.compile(r"[!-~]{1,255}")
_QUOTED = re.compile(r'"(?:[^"\\]|\\["\\])*"')
_SANDBOX_ID = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._~-]{1,128}")
_COMMAND_ID = re.compile(r"[A-Za-z0-9_-]{1,256}")

_SCOPE_KEY = "oncebox.exchange"


@dataclass(slots=True)
class Exchange:
    """A request on its way through; each middleware fills in what it finds out."""

    method: str
    headers: dict[str, list[str]]
    """Lower-case names; every value of a repeated header, in order."""
    request_id: str
    route: str | None = None
    """The route's template, not the path: for logs."""
    tenant: str | None = None
    key: str | None = None
    """The Idempotency-Key in force: the caller's, or one made here for a POST that makes something."""
    key_sent: bool = False
    has_body: bool = False
    """The headers announce a body."""
    body: bytes = b""
    body_done: bool = False
    """No more bytes of the body will come."""
    status: int | None = None
    """Of the answer, once it began."""
    answer_headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Put on the answer, problems included."""
    audited: dict[str, str | int] = field(default_factory=dict)
    """More for the line of the audit trail: a file's ``path`` and ``size``."""
    peer: str | None = None
    """The other end of the connection: an address."""
    command_id: str | None = None
    """For logs: the job that this is about, where it is known."""
    wait: Wait = "none"
    observer: RequestObserver = field(default_factory=RequestObserver)
    hung_up: bool = False
    """The caller closed its side while it was waiting, and was answered with what there was."""
    sent_at: float | None = None
    """``time.perf_counter`` of the last byte of the answer so far."""

    @staticmethod
    def begin(scope: Scope) -> Exchange:
        """The exchange of a new request; also kept in its scope."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        lengths = headers.get("content-length", ["0"])
        exchange = Exchange(
            method=scope["method"],
            headers=headers,
            request_id=_request_id(headers),
            has_body="transfer-encoding" in headers or any(length.strip() != "0" for length in lengths),
            peer=(scope.get("client") or (None,))[0],
        )
        scope[_SCOPE_KEY] = exchange
        return exchange

    @staticmethod
    def of(scope: Scope) -> Exchange:
        """The exchange of the request whose scope this is."""
        exchange = scope[_SCOPE_KEY]
        assert isinstance(exchange, Exchange)
        return exchange

    def waits(self, wait: Wait) -> None:
        """From here on the request waits on purpose."""
        self.wait = wait
        self.observer.opened(wait)

    def about(self, command_id: str) -> None:
        """The request is about this job: its log lines say so. What is no id is not logged."""
        if parse_command_id(command_id) is not None:
            self.command_id = command_id
            context.command_id.set(command_id)

    @property
    def ambiguous(self) -> bool:
        """Two headers say where the body ends, so others on the way may have read another one."""
        return "transfer-encoding" in self.headers and "content-length" in self.headers

    def header(self, name: str) -> str | None:
        """A header's value; where it was sent several times, ``InvalidRequest``."""
        values = self.headers.get(name)
        if values is None:
            return None
        if len(values) > 1:
            raise InvalidRequest.of(name, "sent more than once")
        return values[0]

    def take_key(self, *, makes: bool) -> None:
        """Find the key in force. Raises ``InvalidIdempotencyKey``; a key is in force all the same."""
        if makes:
            self.key = MadeKey(random_token())
        sent = idempotency_key(self.headers.get("idempotency-key", []))
        if sent is not None:
            self.key = sent
            self.key_sent = True


def _request_id(headers: dict[str, list[str]]) -> str:
    sent = headers.get("x-request-id", [])
    if len(sent) == 1 and _SANE_REQUEST_ID.fullmatch(sent[0].encode("latin-1")):
        return sent[0]
    return random_token()


def idempotency_key(values: list[str]) -> str | None:
    """The key in the values of an ``Idempotency-Key`` header: quoted (a structured field's string) or bare.

    None where there is none. Raises ``InvalidIdempotencyKey``.
    """
    if not values:
        return None
    if len(values) > 1:
        raise InvalidIdempotencyKey("Idempotency-Key was sent more than once")
    key = values[0].strip(" \t")
    if len(key) > 1 and key[0] == key[-1] == '"':
        if not _QUOTED.fullmatch(key):
            raise InvalidIdempotencyKey("Idempotency-Key is not a well-formed quoted string")
        key = re.sub(r"\\(.)", r"\1", key[1:-1])
    if not _VISIBLE_ASCII.fullmatch(key):
        raise InvalidIdempotencyKey("Idempotency-Key must be 1 to 255 visible ASCII characters")
    return key


def shown_key(key: str) -> str:
    """``key`` as a header's value that is read back as the same key."""
    if not key.startswith('"'):
        return key
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class Call:
    """What a handler gets: the exchange, the core, the caller, and room for what the caller has not taken yet."""

    def __init__(self, core: Core, scope: Scope, receive: Receive) -> None:
        self.core = core
        self.exchange = Exchange.of(scope)
        self.caller = Caller(receive)
        self.receive = receive
        self.share: Share = core.room.share(self.exchange.tenant, self._waits)
        self._path: dict[str, str] = scope["path_params"]

    @property
    def tenant(self) -> str:
        """Who is asking."""
        assert self.exchange.tenant is not None
        return self.exchange.tenant

    @property
    def key(self) -> str | None:
        """The Idempotency-Key in force."""
        return self.exchange.key

    @property
    def sandbox_id(self) -> str:
        """The id in the path. One that could not be an id is as unknown as any other."""
        return known_sandbox_id(self._path["sandbox_id"])

    @property
    def command_id(self) -> str:
        """The id in the path. One that could not be an id is as unknown as any other."""
        command_id = self._path["command_id"]
        if not _COMMAND_ID.fullmatch(command_id):
            raise JobNotFound
        self.exchange.about(command_id)
        return command_id

    async def _waits(self, room: asyncio.Future[None]) -> bool:
        """Wait for room; False where nobody waits for the answer any more."""
        try:
            return await self.caller.waits(room)
        except CallerGone:
            return False

    async def close(self) -> None:
        """The answer is over: nothing is held for it any more."""
        self.share.close()
        await self.caller.close()


def known_sandbox_id(sandbox_id: str) -> str:
    """``sandbox_id``, unless no engine could have made it: then ``SandboxNotFound``."""
    if not _SANDBOX_ID.fullmatch(sandbox_id):
        raise SandboxNotFound
    return sandbox_id
