"""What the rules ask of a transport: a flow is a generator that yields steps and is sent what came of them.

Nothing here, and nothing in a flow, does I/O: the synchronous and the asynchronous client drive the same
flows, and the tests drive them in virtual time.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from .transfers import Content, Receiver

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """Send this once. Answered by an :class:`Answer` or a :class:`Dropped`."""

    method: str
    path: str
    """Below the base URL, quoted, with its query."""
    read_timeout: float
    """Seconds without a byte after which the connection counts as dead."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | Content | None = None
    receiver: Receiver | None = None
    """Takes the body of a success in place of the answer."""

    @property
    def is_transfer(self) -> bool:
        """A file goes one way or the other: as long as bytes come, it may take its time."""
        return self.receiver is not None or not isinstance(self.body, bytes | None)


@dataclass(frozen=True, slots=True)
class Pause:
    """Sleep for ``seconds``. Answered by None."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reset:
    """Forget the idle connections: one of them gave the answer to another request. Answered by None."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer: its body has the length that it announced."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def media_type(self) -> str:
        """The content type without its parameters, in lower case."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


@dataclass(frozen=True, slots=True)
class Dropped:
    """No whole answer came. Whether the request arrived is not known, unless it is ``unsent``."""

    detail: str
    permanent: bool = False
    """Trying again can't help: a certificate that is not trusted, for instance."""
    cause: BaseException | None = None
    unsent: bool = False
    """There was no connection on which it could have been sent."""


Step: TypeAlias = Request | Pause | Reset
Reply: TypeAlias = Answer | Dropped | None
Flow: TypeAlias = Generator[Step, Reply, T]
