"""An honest development engine: OpenSandbox's wire protocol, real processes, one process, one port.

It speaks the lifecycle API and each sandbox's execd as the real ones do, the unpleasant behaviours
included, so that the client code that meets production is the one that is tested. It is not a security
boundary, has no images (a sandbox sees the machine's programs) and forgets everything when it ends.

    python -m service.local_engine --bind 127.0.0.1:0 [--root DIR] [--isolation auto|bwrap|plain]
        [--volume-root DIR] [--max-timeout S] [--exit-with-stdin] [--dev-controls]

prints one line, `{"url": "http://127.0.0.1:PORT", "isolation": "bwrap"}`, when it is ready; logs go to
stderr. The API key is taken from `OPEN_SANDBOX_API_KEY`; without one none is asked for. See `isolation` for
what a sandbox is, `dev_controls` for faults on order.

It knows nothing of the rest of Oncebox but how log lines are written (`service.log_writer`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Options, Running, serve

__all__ = ["Options", "Running", "main", "serve"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the engine from the command line until it is told to end; the process's exit code."""
    from .engine import main as run

    return run(argv)


def __getattr__(name: str) -> Any:
    """`serve`, `Options` and `Running`, loaded on first use: the server's libraries take a while to import."""
    if name in ("Options", "Running", "serve"):
        from . import engine

        return getattr(engine, name)
    raise AttributeError(name)
