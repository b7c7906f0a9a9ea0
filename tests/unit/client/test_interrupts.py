"""A caller that is cancelled or interrupted leaves no sandbox behind that nobody knows."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from service.client import AsyncClient, Client
from service.client.driver import Hooks
from service.client.steps import Answer, Dropped, Request
from tests.support.waiting import PATIENCE
from tests.unit.client.fake_service import FakeService
from tests.unit.client.virtual import Clock, Undisturbed, hooks

UNREACHABLE = Dropped("nobody listens", unsent=True)


class Network(Undisturbed):
    """Every request arrives; what ``held`` picks is answered only when the test lets it."""

    def __init__(self, held: Callable[[Request, int], bool]) -> None:
        super().__init__(FakeService({}), Clock())
        self.held = held
        self.before = False
        """Hold requests back before they arrive, not their answers."""
        self.down = False
        self.reached = asyncio.Semaphore(0)
        self.go_on = asyncio.Event()

    def deliver(self, request: Request) -> Answer | Dropped:
        if self.down:
            self.requests.append(request)
            return UNREACHABLE
        return super().deliver(request)

    async def send(self, request: Request) -> Answer | Dropped:
        reply = None if self.before else self.deliver(request)
        self.reached.release()
        if self.held(request, len(self.requests)):
            await self.go_on.wait()
        else:
            await asyncio.sleep(0)
        return reply or self.deliver(request)

    async def reset(self) -> None: ...

    async def close(self) -> None: ...

    def client(self) -> AsyncClient:
        made = hooks(self, self.clock)
        made.async_transport = lambda target: self
        made.async_sleep = self.nap
        return AsyncClient("http://fake", _hooks=made)

    async def nap(self, seconds: float) -> None:
        self.clock.now += seconds
        await asyncio.sleep(0)

    def methods(self) -> list[str]:
        return [request.method for request in self.requests]


def first(request: Request, number: int) -> bool:
    return number == 1


async def ended(task: asyncio.Task[Any]) -> None:
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, PATIENCE)


async def everything_else() -> None:
    """Until all other tasks are over, as ``asyncio.run`` waits for them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=PATIENCE)


async def test_a_create_that_is_cancelled_leaves_no_sandbox() -> None:
    network = Network(first)
    task = asyncio.create_task(network.client().create_sandbox())
    await network.reached.acquire()
    assert network.service.sandboxes
    task.cancel()
    await ended(task)

    assert not network.service.sandboxes
    assert network.methods() == ["POST", "POST", "DELETE"]
    assert network.requests[0].headers["Idempotency-Key"] == network.requests[1].headers["Idempotency-Key"]


async def test_a_timeout_around_a_create_is_a_cancel_too() -> None:
    network = Network(first)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await network.client().create_sandbox()

    assert not network.service.sandboxes


@pytest.mark.parametrize("held", [2, 3])
async def test_a_second_cancel_during_the_clean_up_does_not_end_it(held: int) -> None:
    network = Network(lambda request, number: number in (1, held))
    task = asyncio.create_task(network.client().create_sandbox())
    await network.reached.acquire()
    task.cancel()
    for _ in range(held - 1):
        await network.reached.acquire()
    task.cancel()
    await ended(task)
    network.go_on.set()
    await everything_else()

    assert not network.service.sandboxes


@pytest.mark.parametrize("held", [2, 3])
def test_nor_does_the_end_of_the_loop(held: int) -> None:
    network = Network(lambda request, number: number in (1, held))

    async def main() -> None:
        task = asyncio.create_task(network.client().create_sandbox())
        await network.reached.acquire()
        task.cancel()
        for _ in range(held - 1):
            await network.reached.acquire()
        task.cancel()
        await ended(task)

    asyncio.run(main())

    assert not network.service.sandboxes


async def test_a_create_under_the_caller_s_own_key_is_the_caller_s() -> None:
    network = Network(first)
    task = asyncio.create_task(network.client().create_sandbox(idempotency_key="task-17"))
    await network.reached.acquire()
    task.cancel()
    await ended(task)

    assert len(network.service.sandboxes) == 1
    assert network.methods() == ["POST"]


async def test_a_create_of_which_nothing_was_sent_leaves_at_once() -> None:
    network = Network(lambda request, number: False)
    network.down = True
    napping = asyncio.Event()

    async def nap(seconds: float) -> None:
        napping.set()
        await network.go_on.wait()

    network.nap = nap  # type: ignore[method-assign]
    task = asyncio.create_task(network.client().create_sandbox())
    await napping.wait()
    task.cancel()
    await ended(task)

    assert len(network.requests) == 1


async def test_a_sandbox_that_can_t_be_deleted_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    network = Network(first)
    task = asyncio.create_task(network.client().create_sandbox())
    await network.reached.acquire()
    network.down = True
    began = network.clock.now
    task.cancel()
    with caplog.at_level(logging.WARNING, "oncebox"):
        await ended(task)

    assert "may be left" in caplog.text
    assert network.requests[0].headers["Idempotency-Key"] in caplog.text
    assert network.clock.now - began <= 61


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("cancels", [1, 2, 3])
async def test_the_end_of_a_block_deletes_its_sandbox_however_often_it_is_cancelled(
    cancels: int, at_once: bool
) -> None:
    network = Network(lambda request, number: request.method == "DELETE")
    network.before = True
    client = network.client()
    box = await client.create_sandbox()
    await network.reached.acquire()
    inside = asyncio.Event()

    async def block() -> None:
        async with box:
            inside.set()
            await asyncio.sleep(0 if at_once else 3600)

    task = asyncio.create_task(block())
    await inside.wait()
    if not at_once:
        task.cancel()
    await network.reached.acquire()  # the end of the block
    for number in range(cancels):
        task.cancel()
        if number == 0:
            await network.reached.acquire()  # the clean-up's own
        else:
            await asyncio.sleep(0)
    network.go_on.set()
    await ended(task)
    await everything_else()

    assert not network.service.sandboxes


async def test_closing_a_client_waits_for_what_it_cleans_up() -> None:
    network = Network(lambda request, number: number in (1, 2))
    client = network.client()
    task = asyncio.create_task(client.create_sandbox())
    await network.reached.acquire()
    task.cancel()
    await network.reached.acquire()
    task.cancel()
    await ended(task)
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0.01)
    assert not closing.done()
    network.go_on.set()
    await asyncio.wait_for(closing, PATIENCE)

    assert not network.service.sandboxes


# Threads and signals


class Interrupting:
    """A transport that is interrupted, after the request has arrived, at the requests whose numbers are given."""

    def __init__(self, network: Undisturbed, at: dict[int, BaseException]) -> None:
        self.network = network
        self.at = at
        self.threads: list[threading.Thread] = []

    def send(self, request: Request) -> Answer | Dropped:
        reply = self.network.deliver(request)
        self.threads.append(threading.current_thread())
        if (error := self.at.get(len(self.network.requests))) is not None:
            raise error
        return reply

    def reset(self) -> None: ...

    def close(self) -> None: ...


def interrupted(at: dict[int, BaseException]) -> tuple[Client, FakeService, Interrupting]:
    service, clock = FakeService({}), Clock()
    network = Undisturbed(service, clock)
    transport = Interrupting(network, at)
    made: Hooks = hooks(network, clock)
    made.sync_transport = lambda target: transport
    return Client("http://fake", _hooks=made), service, transport


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(), RuntimeError("a signal's handler")])
def test_a_create_that_is_interrupted_leaves_no_sandbox(error: BaseException) -> None:
    client, service, transport = interrupted({1: error})

    with pytest.raises(type(error)):
        client.create_sandbox()

    assert not service.sandboxes
    # An interrupt comes to the main thread only: the clean-up is out of its reach.
    assert threading.main_thread() not in transport.threads[1:]


def test_an_interrupted_create_under_the_caller_s_own_key_is_the_caller_s() -> None:
    client, service, _ = interrupted({1: KeyboardInterrupt()})

    with pytest.raises(KeyboardInterrupt):
        client.create_sandbox(idempotency_key="task-17")

    assert len(service.sandboxes) == 1


def test_a_block_s_end_that_is_interrupted_deletes_its_sandbox() -> None:
    client, service, transport = interrupted({})
    box = client.create_sandbox()
    transport.at = {2: KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt), box:
        pass

    assert not service.sandboxes
    assert [request.method for request in transport.network.requests] == ["POST", "DELETE", "DELETE"]
