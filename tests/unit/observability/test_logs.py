"""A line an event, with what is known of the work under way."""

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from service import context
from service.core.claims.tasks import Tasks
from service.core.model.identity import command_id, job_ref
from service.server.logs import JsonLines
from tests.unit.api.fakes import FakeCore, ask

COMMAND = command_id("sb", job_ref("00"))


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the loggers of the service write."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("oncebox")
    logger.addHandler(handler)
    before, logger.level = logger.level, logging.INFO
    yield written
    logger.setLevel(before)
    logger.removeHandler(handler)


def read(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


async def test_a_line_says_whose_work_it_tells_of(lines: io.StringIO) -> None:
    context.begin("r1")
    context.tenant.set("acme")
    context.command_id.set(COMMAND)
    logging.getLogger("oncebox.x").warning("something\nodd")
    (line,) = read(lines)
    assert {name: line[name] for name in ("request_id", "tenant", "command_id", "message")} == {
        "request_id": "r1", "tenant": "acme", "command_id": COMMAND, "message": "something\nodd",
    }  # fmt: skip


async def test_work_that_outlives_its_request_still_says_whose_it_is(lines: io.StringIO) -> None:
    tasks, go_on = Tasks(), asyncio.Event()

    async def work() -> None:
        await go_on.wait()
        context.command_id.set(COMMAND)
        logging.getLogger("oncebox.x").info("done")

    context.begin("r1")
    task = tasks.start(work(), "work")
    context.begin("r2")
    go_on.set()
    await task
    (line,) = read(lines)
    assert line["request_id"] == "r1"
    assert line["command_id"] == COMMAND
    assert context.command_id.get() is None, "what a task finds out is its own"


async def test_the_line_of_a_request_has_the_job_that_it_was_about(lines: io.StringIO) -> None:
    headers = [("X-Request-Id", "r1")]
    await ask(FakeCore().app(), "GET", f"/v1/exec-jobs/{COMMAND}", headers=headers)
    await ask(FakeCore().app(), "GET", "/v1/exec-jobs/cmd_made-up-by-a-caller")
    first, second = read(lines)
    assert (first["request_id"], first["tenant"], first["command_id"]) == ("r1", "default", COMMAND)
    assert "command_id" not in second
