"""``map()`` in threads."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator

from .calls import Calls
from .driver import Stopped, SyncDriver
from .mapping import Task, TaskMaker
from .results import MapResult
from .views import SandboxView

LOOK = 0.5
"""Seconds between two looks whether anybody still wants the results."""


class SyncMap:
    """Carries tasks through in ``concurrency`` threads. The threads don't keep the process alive."""

    def __init__(
        self,
        calls: Calls,
        driver: SyncDriver,
        maker: TaskMaker,
        sandboxes: Iterable[SandboxView | str],
        concurrency: int,
    ) -> None:
        self._calls = calls
        self._driver = driver
        self._tasks = map(maker.task, sandboxes)
        self._concurrency = concurrency
        self._lock = threading.Lock()
        self._stop = threading.Event()
        # Bounded: when the results are taken slowly, no more jobs are started than that.
        self._done: queue.Queue[MapResult | BaseException | None] = queue.Queue(concurrency)

    def results(self) -> Iterator[MapResult]:
        """The results, in the order in which they come."""
        threads = [
            threading.Thread(target=self._work, name=f"oncebox-map-{number}", daemon=True)
            for number in range(self._concurrency)
        ]
        for thread in threads:
            thread.start()
        working = len(threads)
        try:
            while working:
                done = self._done.get()
                if done is None:
                    working -= 1
                elif isinstance(done, BaseException):
                    raise done
                else:
                    yield done
        finally:
            self._stop.set()

    def _work(self) -> None:
        try:
            while (task := self._next()) is not None:
                self._put(self._driver.run(task.flow(self._calls), self._stop))
        except Stopped:
            return
        except BaseException as error:  # noqa: BLE001  (raised again by the thread that iterates)
            self._put(error)
        self._put(None)

    def _next(self) -> Task | None:
        with self._lock:
            return None if self._stop.is_set() else next(self._tasks, None)

    def _put(self, done: MapResult | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                return self._done.put(done, timeout=LOOK)
            except queue.Full:
                continue
        return None
