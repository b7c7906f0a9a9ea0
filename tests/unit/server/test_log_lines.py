"""The log's own thread: whoever logs never waits, and what is lost is told."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator

import pytest

from service import log_writer
from service.log_writer import LogWriter
from service.server.logs import JsonLines


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def handler_on(descriptor: int) -> LogWriter:
    handler = LogWriter(descriptor)
    handler.setFormatter(JsonLines())
    return handler


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("oncebox", logging.INFO, "", 0, message, (), None)


def test_lines_come_in_order_and_all_of_them_before_the_end(pipe: tuple[int, int]) -> None:
    out, into = pipe
    handler = handler_on(into)
    for number in range(100):
        handler.handle(record(f"line {number}"))
    handler.flush()
    lines = os.read(out, 65_536).splitlines()
    assert [json.loads(line)["message"] for line in lines] == [f"line {number}" for number in range(100)]


def test_what_nobody_takes_is_bounded_and_how_much_was_lost_is_told(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "MOST_WAITING", 200_000)
    monkeypatch.setattr(log_writer, "LAST_LINES", 0.1)
    out, into = pipe
    handler = handler_on(into)
    for _ in range(1000):
        handler.handle(record("x" * 1000))
    handler.flush()  # gives up: nobody reads
    text, written, lost = b"", 0, 0
    while written + lost < 1000:  # told once or several times
        text += os.read(out, 65_536)
        said = [json.loads(line)["message"] for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
        written = sum(line.startswith("x") for line in said)
        lost = sum(
            int(line.removesuffix(" lines of this log are lost: nobody took them")) for line in said if line[0] != "x"
        )
    assert written + lost == 1000
    assert 0 < written < 600
