"""Peers: job queues on Redis, run by a Python of their own; knows nothing of the rest.

`python peer_queues.py NAME worker URL` runs a worker until it is killed; `... NAME client URL COUNT AT_ONCE` submits
so many no-ops, waits for each result, and prints a line of JSON: the rate, and the median wait in milliseconds.
"""
# mypy: ignore-errors

import asyncio
import json
import statistics
import sys
import time
from urllib.parse import urlsplit


async def noop(*_args, **_more):
    return 1


def arq_settings(url):
    from arq.connections import RedisSettings

    return RedisSettings.from_dsn(url)


def worker(name, url):
    if name == "arq":
        from arq.worker import Worker

        asyncio.set_event_loop(asyncio.new_event_loop())
        Worker([noop], redis_settings=arq_settings(url), max_jobs=64, poll_delay=0.01, handle_signals=False).run()
    elif name == "saq":
        from saq import Queue, Worker

        asyncio.run(Worker(Queue.from_url(url), [noop], concurrency=64).start())
    else:
        from taskiq.api import run_receiver_task

        broker, _ = taskiq(url)
        asyncio.run(started(broker, run_receiver_task))


async def started(broker, run):
    broker.is_worker_process = True
    await broker.startup()
    await run(broker, max_async_tasks=64)


def taskiq(url):
    from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend

    broker = ListQueueBroker(url).with_result_backend(RedisAsyncResultBackend(url))
    return broker, broker.register_task(noop, task_name="noop")


async def submitter(name, url):
    """A coroutine function that submits one and waits for its result."""
    if name == "arq":
        from arq import create_pool

        pool = await create_pool(arq_settings(url))

        async def one():
            await (await pool.enqueue_job("noop")).result(poll_delay=0.01)

    elif name == "saq":
        from saq import Queue

        queue = Queue.from_url(url)
        await queue.connect()

        async def one():
            await queue.apply("noop", poll_interval=0.01, retries=3)

    else:
        broker, task = taskiq(url)
        await broker.startup()

        async def one():
            await (await task.kiq()).wait_result(check_interval=0.01)

    return one


async def client(name, url, count, at_once):
    one = await submitter(name, url)
    await asyncio.wait_for(one(), 30)
    waits = []
    left = iter(range(count))

    async def caller():
        for _ in left:
            begin = time.perf_counter()
            await one()
            waits.append((time.perf_counter() - begin) * 1000)

    begin = time.perf_counter()
    await asyncio.wait_for(asyncio.gather(*(caller() for _ in range(at_once))), 60)
    took = time.perf_counter() - begin
    print(json.dumps({"rate": round(count / took, 1), "p50_ms": round(statistics.median(waits), 2)}), flush=True)


if __name__ == "__main__":
    what, role, where, *rest = sys.argv[1:]
    assert urlsplit(where).scheme == "redis"
    if role == "worker":
        worker(what, where)
    else:
        asyncio.run(client(what, where, *map(int, rest)))
