"""Processes on a terminal of their own: a real pseudo-terminal, with a keyboard."""

import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.waiting import PATIENCE

CTRL_C = b"\x03"
ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


class TerminalProcess:
    """A process whose standard streams are one terminal. Every wait has a deadline and fails with the screen.

    Args:
        argv: the program and its arguments.
        env: variables to set, or with None to unset.
        columns: the terminal's width.
        stdout: a file that takes its standard output instead of the terminal.
    """

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str | None] | None = None,
        columns: int = 80,
        stdout: Path | None = None,
    ) -> None:
        self._master, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        variables: dict[str, str | None] = {**os.environ, "TERM": "xterm-256color", "NO_COLOR": None}
        variables |= {"COLUMNS": None, "LINES": None, "ONCEBOX_URL": None, **(env or {})}
        with stdout.open("wb") if stdout else contextlib.nullcontext(terminal) as output:
            self._popen = subprocess.Popen(
                [str(word) for word in argv],
                stdin=terminal,
                stdout=output,
                stderr=terminal,
                env={name: value for name, value in variables.items() if value is not None},
                start_new_session=True,
                preexec_fn=lambda: fcntl.ioctl(2, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - one system call
            )
        os.close(terminal)
        self._pieces: list[bytes] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._reader.join(timeout=PATIENCE)
        os.close(self._master)

    @property
    def raw(self) -> bytes:
        """All that came to the terminal so far."""
        return b"".join(list(self._pieces))

    @property
    def screen(self) -> str:
        """What a person has seen so far, without escape sequences; lines end with a line feed alone."""
        return ESCAPES.sub(b"", self.raw).replace(b"\r\n", b"\n").decode(errors="replace")

    @property
    def left(self) -> str:
        """What is left on the terminal when erased lines are taken away."""
        shown = []
        for line in self.raw.replace(b"\r\n", b"\n").split(b"\n"):
            kept = line.split(b"\r\x1b[K")[-1]
            shown.append(ESCAPES.sub(b"", kept).decode(errors="replace"))
        return "\n".join(shown)

    def press(self, keys: bytes) -> None:
        """Type."""
        os.write(self._master, keys)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        self._popen.send_signal(number)

    def wait_for(self, text: str, *, after: str = "", timeout: float = PATIENCE) -> None:
        """Wait until the text was on the screen, behind what else was on it."""
        deadline = time.monotonic() + timeout
        while True:
            ended = self._popen.poll() is not None and not self._reader.is_alive()
            screen = self.screen
            if text in screen[screen.find(after) + len(after) :] and after in screen:
                return
            if ended or time.monotonic() > deadline:
                raise AssertionError(f"no {text!r} (exit code {self._popen.poll()}): {screen}")
            time.sleep(0.01)

    def wait(self, *, timeout: float = PATIENCE) -> int:
        """Wait for its end, and for all that it printed; its exit code."""
        try:
            code = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {timeout} s: {self.screen}") from None
        self._reader.join(timeout=PATIENCE)
        return code

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # EIO: the last one that had the terminal is gone
            while piece := os.read(self._master, 65_536):
                self._pieces.append(piece)
