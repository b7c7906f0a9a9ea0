"""Metrics as text, for one process or for all workers of one ``oncebox serve --workers N``.

Each worker has the same port, so a scrape reaches any of them and must get the sums over all. With more than one,
every worker keeps its values in files of a directory of their own (``prometheus_client``'s multiprocess mode), and
whichever is asked adds them up. A worker that ends takes its gauges with it; its counters stay, or rates would jump.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

if TYPE_CHECKING:
    from collections.abc import Iterator

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
"""The client library's own variable; looked at when it is imported."""


def prepare() -> None:
    """Where the environment names a directory for values that several processes share, make it."""
    if shared := os.environ.get(DIRECTORY):
        os.makedirs(shared, exist_ok=True)


class Exposition:
    """Renders what a scrape gets."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # A series more for each counter and histogram, which Prometheus has no use for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        shared = os.environ.get(DIRECTORY)
        if shared:
            self._registry = CollectorRegistry()
            multiprocess.MultiProcessCollector(self._registry, shared)  # type: ignore[no-untyped-call]
        else:
            ProcessCollector(registry=registry)
            self._registry = registry

    def render(self) -> bytes:
        """In Prometheus's text format."""
        return generate_latest(self._registry)


class SharedDirectory:
    """Where workers keep their values. Kept by their parent, which keeps none itself."""

    def __init__(self, path: str) -> None:
        self.path = path

    def worker_ended(self, pid: int | None) -> None:
        """Its gauges are gone."""
        if pid is not None:
            multiprocess.mark_process_dead(pid, self.path)  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def shared_directory() -> Iterator[SharedDirectory]:
    """A new one, which processes that are started inside find in their environment; at the end it is removed."""
    before = os.environ.get(DIRECTORY)
    path = tempfile.mkdtemp(prefix="oncebox-metrics-")
    os.environ[DIRECTORY] = path
    try:
        yield SharedDirectory(path)
    finally:
        if before is None:
            del os.environ[DIRECTORY]
        else:
            os.environ[DIRECTORY] = before
        shutil.rmtree(path, ignore_errors=True)
