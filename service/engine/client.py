"""``OpenSandboxEngine``: the port's ``Engine`` on OpenSandbox's wire protocol."""

import re
from collections.abc import Sequence

from service.engine.endpoints import Endpoints, Mode, Network
from service.engine.files import ExecdFiles
from service.engine.lifecycle import Lifecycle
from service.engine.observing import Observe, Trace
from service.engine.transport import Transport
from service.ports.engine import Runtime

DEFAULT_LIMIT = 512
"""Connections of each of the two pools (reads; all else)."""
_URL = re.compile(r"(https?)://[^\s/@?#\\]+(/[^\s@?#\\]*)?", re.IGNORECASE)


class OpenSandboxEngine(Lifecycle, ExecdFiles):
    """An OpenSandbox engine, spoken to over HTTP. Connections are made in the event loop of the first call.

    Args:
        url: ``http(s)://host[:port]`` of the lifecycle server. Endpoints in sandboxes get the same scheme.
        api_key: sent to the lifecycle server alone, never to a sandbox; empty: none is sent.
        proxy: reach execd through the lifecycle server's proxy (``always``), at its own endpoint (``never``), or
            at its own endpoint wherever that answers (``auto``).
        networks: where not empty, endpoints outside them are never contacted.
        runtime: what the engine runs sandboxes with; None: learnt from its answers.
        limit: connections of each of two pools.
        observe: called after each HTTP call with its kind, ``answer``, ``refused``, ``not_reached``, ``unclear``,
            ``left`` (the reader went away) or ``cancelled``, and its duration in seconds.
        trace: asked before each HTTP call for the headers that carry a trace on, and told of its end.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str,
        proxy: Mode,
        networks: Sequence[Network] = (),
        runtime: Runtime | None = None,
        limit: int = DEFAULT_LIMIT,
        observe: Observe | None = None,
        trace: Trace | None = None,
    ) -> None:
        found = _URL.fullmatch(url)
        if found is None:
            raise ValueError("the engine's URL must be http(s)://host[:port], without a user, a query or a fragment")
        if not re.fullmatch(r"[\x21-\x7e]*", api_key):
            raise ValueError("the engine's API key must be visible ASCII")
        transport = Transport(limit=limit, observe=observe, trace=trace)
        Lifecycle.__init__(self, transport, url, api_key, runtime=runtime)
        ExecdFiles.__init__(self, transport, self.headers)
        self.endpoints = Endpoints(
            lookup=self.endpoint,
            ping=self.probe,
            proxy_base=self.proxy_base,
            scheme=found[1].lower(),
            mode=proxy,
            networks=networks,
        )

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """A sandbox that is gone already is no error."""
        self.endpoints.forget(sandbox_id)
        await super().delete_sandbox(sandbox_id)

    async def close(self) -> None:
        """Close every connection."""
        await self.endpoints.close()
        await self._transport.close()
