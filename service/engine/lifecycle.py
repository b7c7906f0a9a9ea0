"""The lifecycle server: sandboxes made, looked up, listed, renewed, paused, deleted; endpoints."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from service.engine import wire
from service.engine.outcomes import POD_FAILED, CallKind, Side, clean
from service.engine.transport import Deadline, EngineRequest, Reply, Transport, encode
from service.messages import SandboxState
from service.ports.engine import (
    Mount,
    Refused,
    Runtime,
    SandboxInfo,
    SandboxListing,
    SandboxMissing,
    SandboxSpec,
    Unclear,
)

EXECD_PORT = 44772
"""Where execd listens in each sandbox."""
KEY_HEADER = "OPEN-SANDBOX-API-KEY"
MOST_HELD = 1_200_000
"""Bytes of a create on Kubernetes: its store takes 1.5 MiB an object, which holds more than this."""
NO_SANDBOX = "00000000-0000-4000-8000-000000000000"
"""An id that no sandbox has: ids are random."""
RUNTIMES: Mapping[str, Runtime] = {"DOCKER": "docker", "KUBERNETES": "kubernetes"}
"""The runtime by how its ``::SANDBOX_NOT_FOUND`` begins. Other codes tell nothing: Kubernetes' runtime has
``DOCKER::INVALID_EXPIRATION`` as well."""

CREATE = Deadline(total=660)
"""Seconds: an image that must be pulled takes minutes, and the engine is silent meanwhile."""
GET = Deadline(total=15)
LIST = Deadline(total=30)
DELETE = Deadline(total=60)
"""Seconds: the engine waits for the container to stop."""
RENEW = Deadline(total=30)
PAUSE = Deadline(total=60)
ENDPOINT = Deadline(total=10)
CHECK = Deadline(total=10)


class Lifecycle:
    """Calls of the lifecycle server at ``url`` (``http(s)://host[:port][/path]``, without ``/v1``)."""

    def __init__(self, transport: Transport, url: str, api_key: str, *, runtime: Runtime | None = None) -> None:
        self._transport = transport
        self._told = runtime
        self._learnt: Runtime | None = None
        self._base = f"{url.rstrip('/')}/v1/sandboxes"
        self.headers: Mapping[str, str] = {KEY_HEADER: api_key} if api_key else {}

    async def runtime(self) -> Runtime | None:
        """What the server runs sandboxes with, by the code with which it answers for one that does not exist.

        None: an answer without one of the codes that are known.
        """
        if self._told is None and self._learnt is None:
            with contextlib.suppress(SandboxMissing):
                await self.get_sandbox(NO_SANDBOX)
        return self._told or self._learnt

    async def create_sandbox(self, spec: SandboxSpec) -> SandboxInfo:
        """Not idempotent: each POST makes a sandbox. May take minutes; at most 11."""
        kubernetes = (self._told or self._learnt) == "kubernetes"
        body = encode(_create_body(spec, escape=kubernetes))
        if kubernetes and len(body) > MOST_HELD:
            raise Refused("env and entrypoint are longer than Kubernetes holds, each '$' counted twice")
        try:
            reply = await self._call(CallKind.CREATE, "POST", self._base, CREATE, body)
        except Refused as error:
            if error.code != POD_FAILED:
                raise
            # Of a pod, "ErrImagePull": without a word of which image.
            raise Refused(
                clean(f"image {spec.image}: {error.message}"), code=error.code, status=error.status
            ) from error
        return wire.sandbox(reply.body)

    async def get_sandbox(self, sandbox_id: str) -> SandboxInfo:
        """The sandbox; an answer about another one is not believed."""
        reply = await self._call(CallKind.GET, "GET", self._url(sandbox_id), GET)
        info = wire.sandbox(reply.body)
        if info.id != sandbox_id:
            raise Unclear("get: the answer is about another sandbox")
        return info

    async def list_sandboxes(
        self, metadata: Mapping[str, str], *, states: Sequence[SandboxState] = (), page: int = 1, page_size: int = 200
    ) -> SandboxListing:
        """One page. ``page`` counts from 1; ``page_size`` is at most 200. The filter is the engine's word."""
        query = [
            f"page={page}",
            f"pageSize={page_size}",
            *(f"state={each.value.capitalize()}" for each in states),
        ]
        if metadata:
            query.append(f"metadata={metadata_filter(metadata)}")
        reply = await self._call(CallKind.LIST, "GET", f"{self._base}?{'&'.join(query)}", LIST)
        return wire.listing(reply.body)

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """Gone already is as good."""
        try:
            await self._call(CallKind.DELETE, "DELETE", self._url(sandbox_id), DELETE)
        except SandboxMissing:
            return

    async def renew_sandbox(self, sandbox_id: str, expires_at: float) -> float:
        """The expiry now in force, Unix seconds."""
        body = encode({"expiresAt": wire.rfc3339(expires_at)})
        reply = await self._call(CallKind.RENEW, "POST", f"{self._url(sandbox_id)}/renew-expiration", RENEW, body)
        return wire.renewed(reply.body)

    async def pause_sandbox(self, sandbox_id: str) -> None:
        """202 without a body."""
        await self._call(CallKind.PAUSE, "POST", f"{self._url(sandbox_id)}/pause", PAUSE)

    async def resume_sandbox(self, sandbox_id: str) -> None:
        """202 without a body."""
        await self._call(CallKind.RESUME, "POST", f"{self._url(sandbox_id)}/resume", PAUSE)

    async def endpoint(self, sandbox_id: str, use_server_proxy: bool) -> wire.WireEndpoint:
        """Where execd of this sandbox is, unchecked."""
        asked = "true" if use_server_proxy else "false"
        url = f"{self._url(sandbox_id)}/endpoints/{EXECD_PORT}?use_server_proxy={asked}"
        reply = await self._call(CallKind.ENDPOINT, "GET", url, ENDPOINT)
        return wire.decode(reply.body, wire.WireEndpoint, "endpoint")

    async def check(self) -> None:
        """Raises unless the server answers to our key."""
        reply = await self._call(CallKind.CHECK, "GET", f"{self._base}?page=1&pageSize=1", CHECK)
        wire.listing(reply.body)

    def proxy_base(self, sandbox_id: str) -> str:
        """The URL of the server's proxy to execd of this sandbox."""
        return f"{self._url(sandbox_id)}/proxy/{EXECD_PORT}"

    def _url(self, sandbox_id: str) -> str:
        require_sandbox_id(sandbox_id)
        return f"{self._base}/{sandbox_id}"

    async def _call(
        self, call: CallKind, method: str, url: str, deadline: Deadline, body: bytes | None = None
    ) -> Reply:
        request = EngineRequest(
            call=call,
            side=Side.LIFECYCLE,
            method=method,
            url=url,
            deadline=deadline,
            headers=self.headers,
            body=body,
            repeatable=method == "GET",
        )
        try:
            return await self._transport.call(request)
        except SandboxMissing as missing:
            self._learnt = RUNTIMES.get((missing.code or "").partition("::")[0], self._learnt)
            raise


def require_sandbox_id(sandbox_id: str) -> None:
    """An id that can't be one (``..``, ``a/b``) is missing: it must not become part of a URL."""
    if not wire.ID.fullmatch(sandbox_id):
        raise SandboxMissing("no such sandbox")


def metadata_filter(metadata: Mapping[str, str]) -> str:
    """The value of ``metadata=``: a query string of its own, quoted once for itself and once as a parameter.

    ``{"a.b/c": "x"}`` gives ``a.b%252Fc%3Dx``. Empty or misnamed, the engine returns everything: check each
    item.
    """
    inner = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in metadata.items())
    return quote(inner, safe="")


def _create_body(spec: SandboxSpec, *, escape: bool) -> dict[str, Any]:
    """``escape``: Kubernetes reads ``$$`` as ``$``, and ``$(NAME)`` as that variable, here and in the entrypoint."""

    def given(text: str) -> str:
        return text.replace("$", "$$") if escape else text

    body: dict[str, Any] = {
        "image": {"uri": spec.image},
        "entrypoint": [given(each) for each in spec.entrypoint],
        "resourceLimits": {"cpu": spec.cpu, "memory": spec.memory},
        "timeout": spec.timeout,
        "env": {name: given(value) for name, value in spec.env.items()},
        "metadata": dict(spec.metadata),
    }
    if spec.volumes:
        body["volumes"] = [_volume(each) for each in spec.volumes]
    return body


def _volume(mount: Mount) -> dict[str, Any]:
    volume: dict[str, Any] = {"name": mount.name, "mountPath": mount.mount_path, "subPath": mount.sub_path}
    if (mount.host is None) == (mount.claim is None):
        raise ValueError("a mount has exactly one of host and claim")
    if mount.host is not None:
        volume["host"] = {"path": mount.host}
    else:
        # Else a misspelt name makes a claim, on which an owner's files are then missing.
        volume["pvc"] = {"claimName": mount.claim, "createIfNotExists": False}
    return volume
