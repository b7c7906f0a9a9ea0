"""execd's stream of events, read piece by piece.

Framing, all of which are read, mixed too: a JSON object a line, each followed by an empty line (what execd
1.0 sends, whatever its content type says); SSE (``data:`` lines and an empty line); several objects on one
line; an object appended at the end without a line end. Pieces may be cut anywhere. Pure: no I/O.
"""

import json
import re
from typing import Any

import msgspec

from service.engine.outcomes import appended_object, error_event
from service.ports.engine import CommandEvent, EngineError, Unclear

MAX_EVENT = 1024 * 1024
"""Bytes of one event. A longer one (a line of output without an end) makes the stream ``Unclear``; the
command goes on and is then followed by its id, and its output is read from its files.
"""
LATEST = 1 << 43
"""Milliseconds since the epoch that a timestamp is below, in the year 2248."""
COMMAND_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
"""execd's ids are 32 hex digits. An id becomes part of a path in the sandbox and of a URL, so it may not be
just any text.
"""


class _Error(msgspec.Struct):
    ename: str | None = None
    evalue: str | None = None
    traceback: list[str] | None = None


class _Wire(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    error: _Error | None = None
    code: str | None = None
    message: str | None = None
    timestamp: Any = None
    """Milliseconds since the epoch. Nothing depends on it, so whatever stands there is let through."""


_wire = msgspec.json.Decoder(_Wire)
_KNOWN = ("init", "stdout", "stderr", "ping", "execution_complete", "error")


class CommandStream:
    """The events of one command.

    After each ``feed`` (and ``finish`` at the end of the bytes) look at the events, then at ``failure``, then
    at ``over``. After the terminal event, and after a failure, the rest is ignored (a ping may come after the
    end).
    """

    def __init__(self) -> None:
        self.command: str | None = None
        """execd's id, as soon as ``init`` came."""
        self.over = False
        """The terminal event was seen."""
        self.failure: EngineError | None = None
        """What ended the stream before its terminal event: ``StartFailed`` or ``Unclear``."""
        self._output = False
        self._frames = FrameSplitter()

    def feed(self, piece: bytes) -> list[CommandEvent]:
        """Events that became whole with ``piece``, oldest first."""
        return [] if self._done else self._read(self._frames.feed(piece))

    def finish(self) -> list[CommandEvent]:
        """The end of the bytes. Without a terminal event before it this is a failure: it tells nothing of the
        command.
        """
        events = self._read(self._frames.finish())
        if not self._done:
            state = "before the command's id" if self.command is None else "without a terminal event"
            self.failure = Unclear(f"the stream ended {state}")
            self.failure.cause = "ended"
        return events

    @property
    def _done(self) -> bool:
        return self.over or self.failure is not None

    def _read(self, frames: list[bytes]) -> list[CommandEvent]:
        events = []
        for frame in frames:
            if self._done:
                break
            if (event := self._event(frame)) is not None:
                events.append(event)
        if self._frames.too_long and not self._done:
            self.failure = Unclear(f"an event of more than {MAX_EVENT} bytes")
        return events

    def _event(self, frame: bytes) -> CommandEvent | None:
        wire = _decode(frame)
        if wire is None:
            self.failure = Unclear("the stream holds something that is no event")
            return None
        if wire.type is None:
            if wire.code is not None:
                self.failure = appended_object(
                    wire.code, wire.message or "", init=self.command is not None, output=self._output
                )
            return None
        return self._known(wire.type, wire)

    def _known(self, kind: str, wire: _Wire) -> CommandEvent | None:
        text = wire.text or ""
        if kind == "init":
            return self._init(text, _at(wire))
        if kind == "ping":
            return CommandEvent(type="ping")
        if kind in ("stdout", "stderr"):
            self._output = True
            return CommandEvent(type="stdout" if kind == "stdout" else "stderr", text=text)
        if kind == "execution_complete":
            return self._end(CommandEvent(type="complete", exit_code=0, at=_at(wire)))
        if kind == "error":
            return self._error(wire.error or _Error(), _at(wire))
        return None

    def _init(self, text: str, at: float | None) -> CommandEvent | None:
        if self.command is not None:
            return None
        if not COMMAND_ID.fullmatch(text):
            self.failure = Unclear("the command's id is not one")
            return None
        self.command = text
        return CommandEvent(type="init", text=text, at=at)

    def _error(self, error: _Error, at: float | None) -> CommandEvent | None:
        trace = error.traceback[0] if error.traceback else ""
        found = error_event(error.evalue or "", trace, init=self.command is not None, output=self._output)
        if isinstance(found, EngineError):
            self.failure = found
            return None
        return self._end(msgspec.structs.replace(found, at=at))

    def _end(self, event: CommandEvent) -> CommandEvent | None:
        if self.command is None:
            self.failure = Unclear("the end of a command whose id never came")
            return None
        self.over = True
        return event


def _at(wire: _Wire) -> float | None:
    told = wire.timestamp
    return told / 1000 if isinstance(told, int) and 0 < told < LATEST else None


def _decode(frame: bytes) -> _Wire | None:
    """One event; ``None`` for what is none. Of a type that is not known here only the type is looked at."""
    try:
        return _wire.decode(frame)
    except msgspec.ValidationError:
        return _of_unknown_type(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _of_unknown_type(frame: bytes) -> _Wire | None:
    try:
        found: Any = msgspec.json.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    kind = found.get("type") if isinstance(found, dict) else None
    return _Wire(type=kind) if isinstance(kind, str) and kind not in _KNOWN else None


class FrameSplitter:
    """Cuts bytes into JSON objects, by lines."""

    def __init__(self) -> None:
        self.too_long = False
        self._rest = bytearray()
        self._searched = 0
        self._data = bytearray()
        self._first = True

    def feed(self, piece: bytes) -> list[bytes]:
        """The frames that became whole."""
        self._rest += piece
        frames: list[bytes] = []
        start = 0
        while (end := self._rest.find(b"\n", max(start, self._searched))) >= 0:
            self._line(bytes(self._rest[start:end]), frames)
            start = end + 1
        del self._rest[:start]
        self._searched = len(self._rest)
        if len(self._rest) > MAX_EVENT or len(self._data) > MAX_EVENT:
            self.too_long = True
            self._rest.clear()
            self._data.clear()
            self._searched = 0
        return frames

    def finish(self) -> list[bytes]:
        """What was left without a line end or an empty line; half an object is dropped."""
        frames: list[bytes] = []
        if self._rest:
            self._line(bytes(self._rest), frames)
            self._rest.clear()
        self._dispatch(frames)
        whole = []
        for frame in frames:
            try:
                msgspec.json.decode(frame)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                break
            whole.append(frame)
        return whole

    def _line(self, line: bytes, frames: list[bytes]) -> None:
        line = line.strip(b" \t\r")
        if len(line) > MAX_EVENT:
            self.too_long = True
            return
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            self._dispatch(frames)
        elif line.startswith(b"{"):
            self._dispatch(frames)
            _objects(line, frames)
        elif line.startswith(b"data:"):
            if self._data:
                self._data += b"\n"
            self._data += line[5:].lstrip(b" ")
        elif not line.startswith((b":", b"event:", b"id:", b"retry:")):
            frames.append(line)

    def _dispatch(self, frames: list[bytes]) -> None:
        if self._data:
            _objects(bytes(self._data), frames)
            self._data.clear()


_decoder = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def _objects(text: bytes, frames: list[bytes]) -> None:
    """The JSON objects that stand one after the other in ``text``. What is none goes through as it is."""
    if b"}{" not in text and b"} {" not in text:
        frames.append(text)
        return
    whole, at = text.decode("utf-8", "replace"), 0
    while at < len(whole):
        try:
            _, end = _decoder.raw_decode(whole, at)
        except (ValueError, RecursionError):
            frames.append(whole[at:].encode("utf-8", "replace"))
            return
        frames.append(whole[at:end].encode("utf-8", "replace"))
        at = _SPACE.match(whole, end).end()  # type: ignore[union-attr]  # it matches nothing, too
