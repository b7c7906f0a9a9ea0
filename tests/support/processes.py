"""Other processes: started with their output in files, waited for, and always gone at the end."""

import atexit
import contextlib
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.waiting import PATIENCE

POLL_INTERVAL = 0.01
"""Seconds between two looks at a process that is waited for."""

SHOWN_OUTPUT = 8_000
"""Characters of a process's output, counted from the end, that a message shows."""

USUALLY_IGNORED = {signal.SIGPIPE, signal.SIGXFSZ}
"""By Python itself, which gives them back to what it starts (`restore_signals`)."""

_started: "weakref.WeakSet[ManagedProcess]" = weakref.WeakSet()


def take_signals() -> None:
    """Signals do in this process, and in those that it starts, what they do in one that a terminal started.

    An ignored or blocked signal is inherited: `nohup` ignores SIGHUP, a script's `&` SIGINT and SIGQUIT.
    """
    for number in signal.valid_signals() - USUALLY_IGNORED:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


def end_in_order() -> None:
    """SIGTERM, and a terminal that goes away, end this process as Ctrl-C does: what it started ends with it."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def not_taken(status: str) -> dict[str, set[int]]:
    """The signals that a process blocks and ignores, from its `/proc/PID/status`."""
    masks = re.findall(r"^(SigBlk|SigIgn):\s*([0-9a-f]+)$", status, re.MULTILINE)
    numbers = [number for number in range(1, 65) if number not in (32, 33)]  # those two are the C library's own
    return {name: {number for number in numbers if int(mask, 16) >> number - 1 & 1} for name, mask in masks}


class ManagedProcess:
    """A process in a process group of its own, whose output goes to files.

    Every wait has a deadline in seconds and fails with what the process printed. The waits block: an
    async test in whose event loop something must go on meanwhile calls them through `asyncio.to_thread`.

    Args:
        argv: the program and its arguments.
        folder: where its output goes, to `{name}.out` and `{name}.err`. A second start appends.
        name: how messages call it.
        env: variables to set, or with None to unset, over those of this process.
        cwd: where it runs.
        stdin: what it reads as its standard input, which is empty otherwise.
    """

    def __init__(
        self,
        argv: Sequence[str | Path],
        *,
        folder: Path,
        name: str = "process",
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        stdin: bytes = b"",
    ) -> None:
        self.name = name
        self.stdout_path = folder / f"{name}.out"
        self.stderr_path = folder / f"{name}.err"
        variables = {**os.environ, **(env or {})}
        stdin_path = folder / f"{name}.in"
        stdin_path.write_bytes(stdin)
        with (
            stdin_path.open("rb") as standard_input,
            self.stdout_path.open("ab") as output,
            self.stderr_path.open("ab") as errors,
        ):
            self._popen = subprocess.Popen(
                [str(word) for word in argv],
                stdin=standard_input,
                stdout=output,
                stderr=errors,
                env={key: value for key, value in variables.items() if value is not None},
                cwd=cwd,
                start_new_session=True,
            )
        _started.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Its exit code, -n after signal n, None while it runs."""
        return self._popen.poll()

    @property
    def stdout(self) -> str:
        """All that it has printed so far."""
        return self.stdout_path.read_text(errors="replace")

    @property
    def stderr(self) -> str:
        """All that it has printed so far on its standard error."""
        return self.stderr_path.read_text(errors="replace")

    def report(self) -> str:
        """Its state and the end of its output, for the message of a failed test."""
        state = "still running" if self.alive else f"exit code {self.exit_code}"
        return (
            f"{self.name} (pid {self.pid}): {state}\n"
            f"--- stdout\n{self.stdout[-SHOWN_OUTPUT:]}\n--- stderr\n{self.stderr[-SHOWN_OUTPUT:]}"
        )

    def wait_for_line(self, pattern: str, *, timeout: float = PATIENCE) -> re.Match[str]:
        """Waits for a whole line on either output that the regular expression finds, and returns the match."""
        expression = re.compile(pattern, re.MULTILINE)
        deadline = time.monotonic() + timeout
        while True:
            ended = not self.alive
            if match := expression.search(_lines(self.stdout)) or expression.search(_lines(self.stderr)):
                return match
            self._still_waiting(f"a line like {pattern!r}", ended=ended, deadline=deadline)

    def wait_for_url(self, url: str, *, status: int = 200, timeout: float = PATIENCE) -> None:
        """Waits until a GET of the URL is answered with the status."""
        deadline = time.monotonic() + timeout
        # Loopback is never reached through a proxy that the environment names.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            ended = not self.alive
            with contextlib.suppress(OSError):
                try:
                    with opener.open(url, timeout=2.0) as answer:
                        found = answer.status
                except urllib.error.HTTPError as error:
                    found = error.code
                    error.close()
                if found == status:
                    return
            self._still_waiting(f"{status} from {url}", ended=ended, deadline=deadline)

    def wait(self, *, timeout: float = PATIENCE) -> int:
        """Waits for its end and returns its exit code."""
        try:
            return self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end within {timeout} s: {self.report()}") from None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process alone. To one that has ended, nothing is sent."""
        self._popen.send_signal(number)

    def terminate(self, *, timeout: float = PATIENCE) -> int:
        """Asks it to end with SIGTERM, as an operator does, and returns its exit code."""
        self.send(signal.SIGTERM)
        try:
            return self.wait(timeout=timeout)
        finally:
            self.kill()

    def kill(self) -> None:
        """Ends the process and all of its group, at once. Harmless when they have ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._popen.wait()
        _started.discard(self)

    def _still_waiting(self, what: str, *, ended: bool, deadline: float) -> None:
        """Sleeps for one interval, or fails where waiting is of no use any more."""
        if ended:
            raise AssertionError(f"ended before {what}: {self.report()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} in time: {self.report()}")
        time.sleep(POLL_INTERVAL)


class Spawner:
    """Starts processes for one test and remembers them, so that they can be shown and are always ended."""

    def __init__(self, folder: Path) -> None:
        self.processes: list[ManagedProcess] = []
        self._folder = folder

    def __call__(
        self,
        argv: Sequence[str | Path],
        *,
        name: str = "process",
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        stdin: bytes = b"",
    ) -> ManagedProcess:
        """Starts one, see `ManagedProcess`; a name that is taken gets a number."""
        same = sum(process.name.partition("#")[0] == name for process in self.processes)
        unique = f"{name}#{same + 1}" if same else name
        process = ManagedProcess(argv, folder=self._folder, name=unique, env=env, cwd=cwd, stdin=stdin)
        self.processes.append(process)
        return process

    def kill_all(self) -> None:
        for process in self.processes:
            process.kill()


def _lines(text: str) -> str:
    """Without the last line, where it is still being written."""
    return text[: text.rfind("\n") + 1]


@atexit.register
def _kill_all() -> None:
    for process in list(_started):
        process.kill()
