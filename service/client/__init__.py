"""The SDK of Oncebox: :class:`Client` and :class:`AsyncClient`, the same methods in both.

Users import it as ``oncebox``. It needs nothing of the server.
"""

# ruff: noqa: TID252
from __future__ import annotations

from ..errors import (
    EngineRejected,
    EngineUnavailable,
    FieldError,
    Forbidden,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    Internal,
    InvalidIdempotencyKey,
    InvalidRequest,
    JobNotFound,
    MethodNotAllowed,
    NotFound,
    OnceboxError,
    OutcomeUnknown,
    PayloadTooLarge,
    QuotaExceeded,
    RangeNotSatisfiable,
    RateLimited,
    SandboxNotFound,
    SandboxNotRunning,
    StoreUnavailable,
    Unauthenticated,
    UnsupportedMediaType,
)
from ..messages import Encoding, ExecResult, JobState, Reason, Resources, SandboxState
from ..messages import Job as JobInfo
from ..messages import Sandbox as SandboxInfo
from ._async.client import AsyncClient
from ._async.job import AsyncJob
from ._async.sandbox import AsyncSandbox
from ._sync.client import Client
from ._sync.job import Job
from ._sync.sandbox import Sandbox
from .errors import CommandFailed, ConnectionFailed, DeadlineExceeded, UnexpectedAnswer
from .results import JobResult, MapResult

__all__ = [
    "AsyncClient",
    "AsyncJob",
    "AsyncSandbox",
    "Client",
    "CommandFailed",
    "ConnectionFailed",
    "DeadlineExceeded",
    "Encoding",
    "EngineRejected",
    "EngineUnavailable",
    "ExecResult",
    "FieldError",
    "Forbidden",
    "IdempotencyInProgress",
    "IdempotencyKeyReused",
    "Internal",
    "InvalidIdempotencyKey",
    "InvalidRequest",
    "Job",
    "JobInfo",
    "JobNotFound",
    "JobResult",
    "JobState",
    "MapResult",
    "MethodNotAllowed",
    "NotFound",
    "OnceboxError",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "QuotaExceeded",
    "RangeNotSatisfiable",
    "RateLimited",
    "Reason",
    "Resources",
    "Sandbox",
    "SandboxInfo",
    "SandboxNotFound",
    "SandboxNotRunning",
    "SandboxState",
    "StoreUnavailable",
    "Unauthenticated",
    "UnexpectedAnswer",
    "UnsupportedMediaType",
]
