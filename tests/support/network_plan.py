"""What a `TcpProxy` does to the connections that pass through it."""

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto


class Action(Enum):
    """What a fault does to its connection."""

    RESET = auto()
    """Ends it with RST, as a crashed host or an impatient middlebox does."""

    CLOSE = auto()
    """Ends it with FIN, as a process that exits does."""

    HOLD = auto()
    """Forwards nothing more in this direction and closes nothing: a peer that is gone without a word."""


class Side(Enum):
    """Who learns of a connection's end."""

    BOTH = auto()

    CLIENT = auto()
    """The upstream works on undisturbed; what it still sends is thrown away."""


@dataclass
class Fault:
    """Something that happens once the bytes of one direction have come to a place.

    The place is `after` bytes behind the end of the first `marker`, or, where there is no marker, behind the
    start. What comes later is not forwarded; the default is that nothing is. With `when`, the start is where
    the connection's requests have carried these bytes: so one request among many on a kept connection is met.
    """

    action: Action
    after: int = 0
    marker: bytes | None = None
    when: bytes | None = None
    side: Side = Side.BOTH
    times: int | None = 1
    """Connections that are hit at most; None: every one."""

    hits: int = 0
    happened: asyncio.Event = field(default_factory=asyncio.Event)
    """Set at the first hit."""

    @property
    def spent(self) -> bool:
        return self.times is not None and self.hits >= self.times


@dataclass
class Duplicate:
    """Sends whole requests twice, the second time over a connection of its own whose reply is thrown away."""

    match: bytes = b""
    """Only requests whose head contains these bytes."""

    delay: float = 0.0
    """Seconds by which the second one starts later."""

    times: int | None = 1
    """Requests that are sent twice at most; None: every one."""

    hits: int = 0
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the upstream has begun to answer a second one."""

    @property
    def spent(self) -> bool:
        return self.times is not None and self.hits >= self.times


@dataclass
class Plan:
    """What happens to connections. Each part may be changed at any time, also for those that are open."""

    refuse: bool = False
    """Connections are reset as soon as they are accepted. (`TcpProxy.stop_listening` refuses them.)"""

    delay_request: float = 0.0
    """Seconds that each chunk waits before it is forwarded."""

    delay_reply: float = 0.0

    hold_request: bool = False
    """While it is true, nothing is forwarded in this direction, an end included."""

    hold_reply: bool = False

    request: Fault | None = None
    """A fault at a place in what the client sends."""

    reply: Fault | None = None
    """A fault at a place in what the upstream sends."""

    duplicate: Duplicate | None = None


class Finder:
    """Finds the first occurrence of a marker in a stream, also where chunks cut it."""

    def __init__(self, marker: bytes) -> None:
        assert marker, "an empty marker is everywhere"
        self._marker = marker
        self._tail = b""

    def feed(self, content: bytes) -> int | None:
        """Takes the next bytes; says how many of them stand before the marker's end, None: not found yet."""
        text = self._tail + content
        found = text.find(self._marker)
        if found >= 0:
            return found + len(self._marker) - len(self._tail)
        self._tail = text[max(0, len(text) - len(self._marker) + 1) :]
        return None


class PlaceSearch:
    """Looks for a fault's place in one direction of one connection."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self._when = Finder(fault.when) if fault.when else None
        self._marker = Finder(fault.marker) if fault.marker else None
        self._left = fault.after

    def arm(self, request: bytes) -> int:
        """Takes the next bytes of the requests; says how many of them stand before the start, at most all."""
        if self._when is None:
            return 0
        start = self._when.feed(request)
        if start is None:
            return len(request)
        self._when = None
        return start

    def find(self, content: bytes) -> int | None:
        """Takes the next bytes behind the start; says how many stand before the place; None: not yet."""
        if self._when is not None:
            return None
        start = 0
        if self._marker is not None:
            found = self._marker.feed(content)
            if found is None:
                return None
            start, self._marker = found, None
        if len(content) - start >= self._left:
            return start + self._left
        self._left -= len(content) - start
        return None
