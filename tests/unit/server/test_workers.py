"""The process that looks after workers."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from service.server import workers
from service.server.workers import Workers
from service.settings import Settings


def test_a_worker_that_can_not_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    class Process:
        def __init__(self, target: Any, args: tuple[Any, ...], name: str) -> None:
            self.pipe = args[1]

        def start(self) -> None:
            tried.append(self.pipe)
            if len(tried) < 3:
                raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(workers, "RESTART_SECONDS", 0.0)
    monkeypatch.setattr(workers, "_spawn", SimpleNamespace(Pipe=workers._spawn.Pipe, Process=Process))
    kept = Workers(Settings(tenants="x"), 2, SimpleNamespace())  # type: ignore[arg-type]
    kept._start_another()
    assert len(tried) == 3
    assert len(kept._running) == 1
    assert all(pipe.closed for pipe in tried)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
    for ours in kept._running.values():
        ours.close()
