"""The SDK of Oncebox: :class:`Client` and :class:`AsyncClient`, the same methods in both.

Users import it as ``oncebox``. It needs nothing of the server.
"""

# ruff: noqa: TID252
from __future__ import annotations

from ..errors import (
    DirectoryNotEmpty,
    DiskFull,
    EngineRejected,
    EngineUnavailable,
    FieldError,
    FileNotFound,
    FilePermissionDenied,
    FileTooLarge,
    Forbidden,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    Internal,
    InvalidIdempotencyKey,
    InvalidRequest,
    IsADirectory,
    JobNotFound,
    MethodNotAllowed,
    NotADirectory,
    NotAFile,
    NotFound,
    OnceboxError,
    OutcomeUnknown,
    PayloadTooLarge,
    PreconditionFailed,
    QuotaExceeded,
    RangeNotSatisfiable,
    RateLimited,
    SandboxNotFound,
    SandboxNotRunning,
    StoreUnavailable,
    Unauthenticated,
    UnsupportedMediaType,
)
from ..messages import Encoding, ExecResult, FileType, JobState, Reason, Resources, SandboxState
from ..messages import File as FileInfo
from ..messages import Job as JobInfo
from ..messages import Sandbox as SandboxInfo
from ._async.client import AsyncClient
from ._async.files import AsyncFiles
from ._async.job import AsyncJob
from ._async.sandbox import AsyncSandbox
from ._async.tasks import AsyncTaskRun
from ._sync.client import Client
from ._sync.files import Files
from ._sync.job import Job
from ._sync.sandbox import Sandbox
from ._sync.tasks import TaskRun
from .errors import ConnectionFailed, DeadlineExceeded, UnexpectedAnswer
from .file_calls import FilePart
from .results import CommandFailed, JobPart, JobResult, MapResult, OutputTooLarge
from .tasks import TaskResult

__all__ = [
    "AsyncClient",
    "AsyncFiles",
    "AsyncJob",
    "AsyncSandbox",
    "AsyncTaskRun",
    "Client",
    "CommandFailed",
    "ConnectionFailed",
    "DeadlineExceeded",
    "DirectoryNotEmpty",
    "DiskFull",
    "Encoding",
    "EngineRejected",
    "EngineUnavailable",
    "ExecResult",
    "FieldError",
    "FileInfo",
    "FileNotFound",
    "FilePart",
    "FilePermissionDenied",
    "FileTooLarge",
    "FileType",
    "Files",
    "Forbidden",
    "IdempotencyInProgress",
    "IdempotencyKeyReused",
    "Internal",
    "InvalidIdempotencyKey",
    "InvalidRequest",
    "IsADirectory",
    "Job",
    "JobInfo",
    "JobNotFound",
    "JobPart",
    "JobResult",
    "JobState",
    "MapResult",
    "MethodNotAllowed",
    "NotADirectory",
    "NotAFile",
    "NotFound",
    "OnceboxError",
    "OutcomeUnknown",
    "OutputTooLarge",
    "PayloadTooLarge",
    "PreconditionFailed",
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
    "TaskResult",
    "TaskRun",
    "Unauthenticated",
    "UnexpectedAnswer",
    "UnsupportedMediaType",
]
