"""Many pieces of work in threads, some at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

from .driver import Stopped, stopping

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

LOOK = 0.5
"""Seconds between two looks whether anybody still wants the results."""


class SyncPool(Generic[I, R]):
    """Does ``work`` with each of ``items`` in ``concurrency`` threads; what it raises ends everything.

    The threads don't keep the process alive.
    """

    def __init__(self, work: Callable[[I], R], items: Iterable[I], concurrency: int) -> None:
        self._do = work
        self._items = iter(items)
        self._concurrency = concurrency
        self._lock = threading.Lock()
        self._stop = threading.Event()
        # Bounded: when the results are taken slowly, no more is begun than that.
        self._done: queue.Queue[tuple[R] | BaseException | None] = queue.Queue(concurrency)

    def results(self) -> Iterator[R]:
        """What came of each, in the order in which it comes. Left early, what is under way ends at its next request."""
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
                    yield done[0]
        finally:
            self._stop.set()

    def _work(self) -> None:
        try:
            with stopping(self._stop):
                for item in self._taken():
                    self._put((self._do(item),))
        except Stopped:
            return
        except BaseException as error:  # noqa: BLE001  (raised again by the thread that iterates)
            self._put(error)
        self._put(None)

    def _taken(self) -> Iterator[I]:
        while True:
            with self._lock:
                if self._stop.is_set():
                    return
                try:
                    item = next(self._items)
                except StopIteration:
                    return
            yield item

    def _put(self, done: tuple[R] | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                return self._done.put(done, timeout=LOOK)
            except queue.Full:
                continue
        return None
