"""Query parameters, one struct a route. A field that is a list may be repeated."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from service.core.files.paths import MAX_PATH
from service.errors import InvalidRequest
from service.messages import (
    DEFAULT_CHUNK,
    DEFAULT_PAGE,
    MAX_CHUNK,
    MAX_JOB_TIMEOUT,
    MAX_PAGE,
    MAX_WAIT,
    Encoding,
    JobState,
    SandboxState,
    Stream,
)

PageSize = Annotated[int, Meta(ge=1, le=MAX_PAGE, description="Items of one page.")]
PageToken = Annotated[str, Meta(max_length=4096, description="`next_page_token` of the page before.")]
Pairs = Annotated[list[str], Meta(description="`k=v`; all of them must match.")]
OneStream = Annotated[Stream, Meta(description="Which stream, of a job that has them apart; required there.")]
Text = Annotated[
    str,
    Meta(max_length=256, description="Part of an id, a command, an image or metadata. One page looks at 1,000 items."),
]
Cursor = Annotated[str, Meta(max_length=4096, description="`cursor` of the answer before; absent: from the start.")]


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class SandboxesQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``GET /v1/sandboxes``."""

    metadata: Pairs = []
    state: Annotated[list[SandboxState], Meta(description="Any of them.")] = []
    q: Text | UnsetType = UNSET
    page_size: PageSize = DEFAULT_PAGE
    page_token: PageToken | UnsetType = UNSET


class JobsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``GET /v1/exec-jobs``."""

    sandbox_id: Annotated[str, Meta(min_length=1, max_length=128)] | UnsetType = UNSET
    state: Annotated[list[JobState], Meta(description="Any of them.")] = []
    metadata: Pairs = []
    kind: Literal["job", "exec"] | UnsetType = UNSET
    q: Text | UnsetType = UNSET
    page_size: PageSize = DEFAULT_PAGE
    page_token: PageToken | UnsetType = UNSET


class JobQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``GET /v1/exec-jobs/{command_id}``."""

    cursor: Cursor | UnsetType = UNSET
    limit: Annotated[int, Meta(ge=1, le=MAX_CHUNK, description="Bytes of the log in one answer.")] = DEFAULT_CHUNK
    wait: Annotated[
        float,
        Meta(ge=0, le=MAX_WAIT, description="Seconds to wait for something that the cursor has not seen."),
    ] = 0
    timeout: (
        Annotated[
            int,
            Meta(ge=1, le=MAX_JOB_TIMEOUT, description="The job's own timeout, should its record be lost."),
        ]
        | UnsetType
    ) = UNSET
    encoding: Encoding = Encoding.UTF8
    full: Annotated[bool, Meta(description="The whole command, not its beginning.")] = False
    stream: OneStream | UnsetType = UNSET


class EventsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``GET /v1/exec-jobs/{command_id}/events``."""

    cursor: Cursor | UnsetType = UNSET
    encoding: Encoding = Encoding.UTF8
    stream: (
        Annotated[Stream, Meta(description="One stream of a job that has them apart; absent: both.")] | UnsetType
    ) = UNSET


class OutputQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``GET /v1/exec-jobs/{command_id}/output``."""

    stream: OneStream | UnsetType = UNSET


Path = Annotated[
    str,
    Meta(min_length=1, max_length=MAX_PATH, description="Absolute, or from the sandbox's working directory; UTF-8."),
]
User = Annotated[
    str,
    Meta(
        max_length=256, description="`name`, `uid` or `uid:gid`: with whose rights; else those of the sandbox's daemon."
    ),
]
Mode = Annotated[str, Meta(max_length=6, description="Octal, such as `0644`.")]


class UserQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``POST /v1/sandboxes/{sandbox_id}/directories``."""

    user: User | UnsetType = UNSET


class FileQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``GET /v1/sandboxes/{sandbox_id}/files``, ``.../files/info`` and ``.../archive``."""

    path: Path
    user: User | UnsetType = UNSET


class PutFileQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``PUT /v1/sandboxes/{sandbox_id}/files``."""

    path: Path
    mode: Mode | UnsetType = UNSET
    user: User | UnsetType = UNSET


class RemoveFileQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``DELETE /v1/sandboxes/{sandbox_id}/files``."""

    path: Path
    recursive: Annotated[bool, Meta(description="A directory with all that is in it.")] = False
    user: User | UnsetType = UNSET


class DirectoryQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``GET /v1/sandboxes/{sandbox_id}/directories``."""

    path: Path
    page_size: PageSize = DEFAULT_PAGE
    page_token: PageToken | UnsetType = UNSET
    user: User | UnsetType = UNSET


def given(value: str | UnsetType) -> str | None:
    """An optional text; one that was sent empty (a script's empty variable) counts as absent."""
    return value or None


def pairs_of(values: list[str], field: str = "metadata") -> dict[str, str]:
    """``k=v`` texts as a dict. Raises ``InvalidRequest``."""
    pairs: dict[str, str] = {}
    for text in values:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidRequest.of(field, "expected k=v")
        if pairs.setdefault(key, value) != value:
            raise InvalidRequest.of(field, "two values for one key never match")
    return pairs
