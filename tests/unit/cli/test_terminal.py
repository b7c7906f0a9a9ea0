"""Output as exact bytes, and the progress line that stays out of its way."""

import asyncio
import io
import os
import re
import sys

import pytest

from service.cli.output import progress as progress_module
from service.cli.output.progress import ERASE, Progress
from service.cli.output.terminal import OutputWriter, printable, say
from tests.support.waiting import PATIENCE

EVERY_BYTE = bytes(range(256)) * 300


class FakeTerminal(io.StringIO):
    """A text stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError


def one_terminal(monkeypatch: pytest.MonkeyPatch) -> FakeTerminal:
    """stderr and stdout are one terminal, and the progress line is drawn without delay.

    Not a fixture: pytest puts its own streams back between a test's phases.
    """
    stream = FakeTerminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(progress_module, "QUIET_BEFORE", 0.0)
    monkeypatch.setattr(progress_module, "REDRAW", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    return stream


async def drawn(stream: io.StringIO, text: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while text not in stream.getvalue():
            await asyncio.sleep(0.001)


async def test_bytes_arrive_as_they_are_through_a_pipe_that_is_slow() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb", buffering=0) as stream:
        writing = asyncio.create_task(OutputWriter(stream).write(EVERY_BYTE))
        got = await asyncio.to_thread(os.read, read_end, 10)
        assert not writing.done(), "a pipe holds less than this chunk"
        while len(got) < len(EVERY_BYTE):
            got += await asyncio.to_thread(os.read, read_end, 65_536)
        await writing
    os.close(read_end)

    assert got == EVERY_BYTE


async def test_a_reader_that_is_gone_is_a_broken_pipe() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb", buffering=0) as stream, pytest.raises(BrokenPipeError):
        await OutputWriter(stream).write(b"x")


async def test_a_stream_without_a_descriptor_is_written_to() -> None:
    stream = io.BytesIO()
    writer = OutputWriter(stream)

    await writer.write(b"a\nb")
    await writer.write(b"")

    assert stream.getvalue() == b"a\nb"
    assert writer.written == 3
    assert writer.line_open


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert printable("a\tb\nc\x1b[2Jdä\x07") == "a b⏎c\\x1b[2Jdä\\x07"


async def test_progress_says_state_time_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = one_terminal(monkeypatch)
    writer = OutputWriter(io.BytesIO())
    async with Progress(writer) as progress:
        progress.state = lambda: "running"
        await progress.write(b"x" * 1499 + b"\n")
        await drawn(terminal, " s, 1.5 kB of output")

    assert re.search(r"running \d+ s, 1", terminal.getvalue())
    assert terminal.getvalue().endswith(ERASE)


async def test_progress_is_erased_before_output_and_stays_away_from_an_open_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal = one_terminal(monkeypatch)

    class Spy(io.BytesIO):
        def write(self, chunk: object) -> int:
            terminal.write(f"<{bytes(chunk).decode()}>")  # type: ignore[call-overload]
            return 0

    async with Progress(OutputWriter(Spy())) as progress:
        await drawn(terminal, "starting")
        await progress.write(b"no line end")
        drawings = terminal.getvalue().count("starting")
        await asyncio.sleep(0.02)  # many times the interval between drawings
        assert terminal.getvalue().count("starting") == drawings
        await progress.write(b"\n")
        await drawn(terminal, "<\n>" + ERASE + "starting")

    assert ERASE + "<no line end>" in terminal.getvalue()


async def test_a_message_does_not_join_an_open_line_of_output(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = one_terminal(monkeypatch)
    async with Progress(OutputWriter(io.BytesIO())) as progress:
        await progress.write(b"no line end")
        say("stopping")

    assert "\noncebox: stopping\n" in terminal.getvalue()


@pytest.mark.parametrize("term", ("dumb", "pipe"))
async def test_without_a_terminal_there_is_no_progress_line(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    terminal = one_terminal(monkeypatch)
    monkeypatch.setenv("TERM", term)
    stream = terminal if term == "dumb" else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    async with Progress(OutputWriter(io.BytesIO())) as progress:
        await progress.write(b"x\n")
        await asyncio.sleep(0.02)  # many times the interval between drawings

    assert stream.getvalue() == ""
