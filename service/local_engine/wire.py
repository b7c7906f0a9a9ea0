"""Pure pieces of the two wire formats: Go's JSON, times and error texts; execd's frames; lines; ranges.

What execd (written in Go) sends is copied to the character where a client can see it: what its JSON escapes,
how bytes that are not UTF-8 look, how a time is cut, how an exit is worded.
"""

from __future__ import annotations

import codecs
import json
import os
import re
import time
from datetime import UTC, datetime
from typing import Any

SIGNAL_TEXTS = {
    1: "hangup", 2: "interrupt", 3: "quit", 4: "illegal instruction", 5: "trace/breakpoint trap",
    6: "aborted", 7: "bus error", 8: "floating point exception", 9: "killed", 10: "user defined signal 1",
    11: "segmentation fault", 12: "user defined signal 2", 13: "broken pipe", 14: "alarm clock",
    15: "terminated", 16: "stack fault", 17: "child exited", 18: "continued", 19: "stopped (signal)", 20: "stopped",
    21: "stopped (tty input)", 22: "stopped (tty output)", 23: "urgent I/O condition",
    24: "CPU time limit exceeded", 25: "file size limit exceeded", 26: "virtual timer expired",
    27: "profiling timer expired", 28: "window changed", 29: "I/O possible", 30: "power failure",
    31: "bad system call",
}  # fmt: skip
"""Signals as execd words them in `error`: `signal: killed`."""

_HTML = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"})
_SURROGATES = re.compile("[\ud800-\udfff]")


def _one_replacement_a_byte(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\ufffd" * (error.end - error.start), error.end


codecs.register_error("local-engine-go", _one_replacement_a_byte)


def text_of(data: bytes) -> str:
    """Bytes as they look in execd's JSON: U+FFFD for each byte that is not UTF-8."""
    return data.decode("utf-8", "local-engine-go")


def without_surrogates(text: str) -> str:
    """A JSON string as Go reads it: half a surrogate pair is U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


def go_json(value: Any) -> bytes:
    """JSON as Go's encoder writes it: no spaces, UTF-8, `<`, `>` and `&` escaped."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_HTML).encode()


def compact_json(value: Any) -> bytes:
    """JSON as the lifecycle server writes it: no spaces, UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def go_time(nanoseconds: int) -> str:
    """RFC 3339 in UTC, up to nine digits of a second, zeros at their end left out, as in execd's status."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{text}.{rest:09d}".rstrip("0") + "Z" if rest else text + "Z"


def server_time(moment: datetime) -> str:
    """RFC 3339 in UTC with microseconds, if there are any, as the lifecycle server writes it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def exit_of(status: int) -> tuple[int, str]:
    """A wait status as execd's exit code and error: -1 and `signal: ...` for signals, timeouts included."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        core = " (core dumped)" if os.WCOREDUMP(status) else ""
        return -1, f"signal: {SIGNAL_TEXTS.get(number, f'signal {number}')}{core}"
    code = os.WEXITSTATUS(status)
    return code, f"exit status {code}" if code else ""


def errno_text(number: int) -> str:
    """An errno as Go words it: `no such file or directory`."""
    text = os.strerror(number)
    return text[:1].lower() + text[1:]


def frame(kind: str, now: int | None = None, **fields: Any) -> bytes:
    """One event of a command's stream: a bare JSON object and an empty line, without `data:`.

    Fields that are empty or 0 are left out, as execd's encoder does. `now`: milliseconds since the epoch.
    """
    event: dict[str, Any] = {"type": kind}
    if fields.get("text"):
        event["text"] = fields["text"]
    if fields.get("execution_time"):
        event["execution_time"] = fields["execution_time"]
    event["timestamp"] = time.time_ns() // 1_000_000 if now is None else now
    if fields.get("error"):
        event["error"] = fields["error"]
    return go_json(event) + b"\n\n"


def error_frame(value: str, trace: str) -> bytes:
    """The `error` event of a foreground command: the exit code as text, or why it never started."""
    return frame("error", error={"ename": "CommandExecError", "evalue": value, "traceback": [trace]})


class Lines:
    """Cuts a foreground command's output into the lines that execd sends.

    `\\n` and `\\r` both end a line, `\\r\\n` ends one; the end is stripped; an empty line is sent as `"\\n"`.
    """

    def __init__(self) -> None:
        self._partial = b""
        self._after_return = False

    def feed(self, data: bytes, last: bool = False) -> list[str]:
        """The lines that `data` completes; with `last`, what is left of an unfinished one too."""
        found: list[str] = []
        position = 0
        for match in re.finditer(rb"[\r\n]", data):
            line = self._partial + data[position : match.start()]
            self._partial = b""
            if line:
                found.append(text_of(line))
            elif not (match.group() == b"\n" and self._after_return):
                found.append("\n")
            self._after_return = match.group() == b"\r"
            position = match.end()
        rest = data[position:]
        if rest:
            self._after_return = False
            self._partial += rest
        if last and self._partial:
            found.append(text_of(self._partial))
            self._partial = b""
        return found


class BadRange(ValueError):
    """A `Range` header that execd can't read."""


def first_range(header: str, size: int) -> tuple[int, int] | None:
    """The first range that overlaps a file of `size` bytes, as (start, length); None: there is none.

    execd serves the first usable range only and skips those that begin past the end. Raises `BadRange`.
    """
    if not header.startswith("bytes="):
        raise BadRange(header)
    found = None
    for part in header[6:].split(","):
        part = part.strip()
        if not part:
            continue
        start, length = _one_range(part, size)
        if start < size and found is None:
            found = (start, min(length, size - start))
    return found


def fallback_status(header: str, size: int) -> int:
    """The status for a `Range` header without a usable range, or for none, as Go's file server has it.

    206, with nothing of the file, for `-0` and for the end of an empty file; 416 for ranges past the end; 200
    for no range at all and for an empty file.
    """
    parts = [part.strip() for part in header[6:].split(",") if part.strip()]
    if any(part.startswith("-") for part in parts):
        return 206
    return 416 if parts and size else 200


def is_number(text: str) -> bool:
    """A number in plain digits: what `str.isdigit` takes for one ("²") is none to `int`."""
    return re.fullmatch(r"[0-9]{1,18}", text) is not None


def _one_range(part: str, size: int) -> tuple[int, int]:
    first, dash, last = part.partition("-")
    first, last = first.strip(), last.strip()
    if not dash or not (first or last) or not all(is_number(n) for n in (first, last) if n):
        raise BadRange(part)
    if not first:
        length = min(int(last), size)
        return size - length, length
    if not last:
        return int(first), max(size - int(first), 0)
    if int(last) < int(first):
        raise BadRange(part)
    return int(first), int(last) - int(first) + 1


_GO_VARIABLE = re.compile(r"\$(?:\{([^}]*)\}|([A-Za-z_][A-Za-z0-9_]*|[*#$@!?\-0-9{]))")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$([A-Za-z_][A-Za-z0-9_]*)")


class UndefinedVariables(ValueError):
    """A path names environment variables that are not set; the message is execd's."""


def expand_variables(text: str, env: dict[str, str]) -> str:
    """`$VAR` and `${VAR}` replaced, by nothing where they are not set, as Go's `os.ExpandEnv` does."""
    return _GO_VARIABLE.sub(lambda match: env.get(match[1] or match[2] or "", ""), text)


def clean_path(path: str) -> str:
    """Go's `filepath.Clean`."""
    cleaned = os.path.normpath(path) if path else "."
    return cleaned[1:] if cleaned.startswith("//") else cleaned


def expand_path(path: str, env: dict[str, str]) -> str:
    """`$VAR`, `${VAR}` and a leading `~` replaced, as execd does for `cwd` and file paths."""
    missing = sorted({name for match in _VARIABLE.finditer(path) if (name := match[1] or match[2]) not in env})
    if missing:
        raise UndefinedVariables(f"path references undefined environment variables: {','.join(missing)}")
    path = _VARIABLE.sub(lambda match: env[match[1] or match[2]], path)
    if path == "~" or path.startswith("~/"):
        home = env.get("HOME", "/")
        return home if path == "~" else os.path.join(home, path[2:].lstrip("/"))
    return path
