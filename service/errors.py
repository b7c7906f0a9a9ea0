"""Every error that crosses a boundary of Oncebox: one hierarchy, one class a problem code.

The server raises these and answers them as RFC 9457 problems; the SDK raises the same classes from the
problems that it receives. A class knows its ``code``, its HTTP ``status`` and whether trying the same
request again can help (``retryable``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import msgspec


class FieldError(msgspec.Struct, frozen=True):
    """What is wrong with one field: ``field`` is a dotted path, a header's name or a parameter's name."""

    field: str
    message: str


class OnceboxError(Exception):
    """Something went wrong."""

    code: ClassVar[str] = "INTERNAL"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Something went wrong"
    retryable: bool = False
    replayed: bool = False
    """On the server: another request with the same key made this answer."""

    def __init__(
        self,
        detail: str | None = None,
        *,
        command_id: str | None = None,
        sandbox_id: str | None = None,
        errors: Sequence[FieldError] = (),
        retry_after: float | None = None,
        request_id: str | None = None,
        retryable: bool | None = None,
    ) -> None:
        self.detail = detail or self.title
        self.command_id = command_id
        self.sandbox_id = sandbox_id
        self.errors = tuple(errors)
        self.retry_after = retry_after
        """Seconds after which trying again makes sense; None where the server did not say."""
        self.request_id = request_id
        self.idempotency_key: str | None = None
        """Of the request that failed, in the SDK: the same key leads to what it may have made."""
        if retryable is not None:
            self.retryable = retryable
        super().__init__(self.detail)

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.detail,), self.__dict__)


@contextmanager
def replaying(replayed: bool) -> Iterator[None]:
    """Where ``replayed``, errors that are raised inside are other requests' answers, and say so."""
    try:
        yield
    except OnceboxError as error:
        error.replayed = replayed
        raise


class Internal(OnceboxError):
    """A bug in Oncebox."""

    code = "INTERNAL"
    status = 500
    title = "Internal error"


class InvalidRequest(OnceboxError):
    """The request is not well formed; ``errors`` names each field."""

    code = "INVALID_REQUEST"
    status = 422
    title = "Invalid request"

    @classmethod
    def of(cls, field: str, message: str) -> InvalidRequest:
        """An error about one field."""
        return cls(f"{field}: {message}", errors=[FieldError(field, message)])


class NotJson(InvalidRequest):
    """The body is not JSON."""

    status = 400
    title = "The body is not JSON"


class InvalidIdempotencyKey(OnceboxError):
    """An Idempotency-Key is 1 to 255 visible ASCII characters."""

    code = "INVALID_IDEMPOTENCY_KEY"
    status = 400
    title = "Invalid Idempotency-Key"


class NotFound(OnceboxError):
    """No such route."""

    code = "NOT_FOUND"
    status = 404
    title = "No such route"


class MethodNotAllowed(OnceboxError):
    """The route exists, the method does not."""

    code = "METHOD_NOT_ALLOWED"
    status = 405
    title = "Method not allowed"


class UnsupportedMediaType(OnceboxError):
    """A body must be ``application/json``."""

    code = "UNSUPPORTED_MEDIA_TYPE"
    status = 415
    title = "Unsupported media type"


class RangeNotSatisfiable(OnceboxError):
    """The bytes asked for are not there, or are no longer kept."""

    code = "RANGE_NOT_SATISFIABLE"
    status = 416
    title = "Range not satisfiable"
    size: int | None = None
    """Bytes of the whole, where it is known."""


class Unauthenticated(OnceboxError):
    """No API key, or a wrong one."""

    code = "UNAUTHENTICATED"
    status = 401
    title = "Unauthenticated"


class Forbidden(OnceboxError):
    """The tenant may not do this."""

    code = "FORBIDDEN"
    status = 403
    title = "Forbidden"


class SandboxNotFound(OnceboxError):
    """The sandbox is not known here; this says nothing of whether it ever was."""

    code = "SANDBOX_NOT_FOUND"
    status = 404
    title = "Sandbox not found"


class JobNotFound(OnceboxError):
    """The job is not known here; this does not say that its command never ran."""

    code = "JOB_NOT_FOUND"
    status = 404
    title = "Job not found"


class SandboxNotRunning(OnceboxError):
    """The sandbox is paused, stopping or gone, so it can't do this now."""

    code = "SANDBOX_NOT_RUNNING"
    status = 409
    title = "Sandbox not running"


class IdempotencyInProgress(OnceboxError):
    """A sandbox of this key is still being created."""

    code = "IDEMPOTENCY_IN_PROGRESS"
    status = 409
    title = "A request with this key is in progress"
    retryable = True


class IdempotencyKeyReused(OnceboxError):
    """The key was used for another request; nothing was executed."""

    code = "IDEMPOTENCY_KEY_REUSED"
    status = 422
    title = "The key was used for another request"


class PayloadTooLarge(OnceboxError):
    """The body is over 1 MiB, or the command over 96 KiB."""

    code = "PAYLOAD_TOO_LARGE"
    status = 413
    title = "Payload too large"


class RateLimited(OnceboxError):
    """Too many requests, or too many bytes that this tenant's callers have not read; not executed."""

    code = "RATE_LIMITED"
    status = 429
    title = "Too many requests"
    retryable = True


class QuotaExceeded(OnceboxError):
    """A quota is used up; not executed."""

    code = "QUOTA_EXCEEDED"
    status = 429
    title = "Quota exceeded"
    retryable = True


class EngineRejected(OnceboxError):
    """The engine refused the request; not executed."""

    code = "ENGINE_REJECTED"
    status = 422
    title = "The engine refused the request"


class EngineUnavailable(OnceboxError):
    """The engine could not be reached, or a replica has too many submissions; not executed, safe to retry."""

    code = "ENGINE_UNAVAILABLE"
    status = 503
    title = "The engine is not available"
    retryable = True


class OutcomeUnknown(OnceboxError):
    """The request may have been executed and nobody can say yet; it is not executed again."""

    code = "OUTCOME_UNKNOWN"
    status = 502
    title = "The outcome is not known yet"
    retryable = True


class StoreUnavailable(OnceboxError):
    """Redis could not be used; not executed, safe to retry."""

    code = "STORE_UNAVAILABLE"
    status = 503
    title = "The store is not available"
    retryable = True


class FileNotFound(OnceboxError):
    """There is no such file, or a link leads nowhere."""

    code = "FILE_NOT_FOUND"
    status = 404
    title = "File not found"


class IsADirectory(OnceboxError):
    """A directory is there, where a file was asked for."""

    code = "IS_A_DIRECTORY"
    status = 409
    title = "It is a directory"


class NotADirectory(OnceboxError):
    """Something else than a directory is there, at the path or on the way to it."""

    code = "NOT_A_DIRECTORY"
    status = 409
    title = "It is not a directory"


class NotAFile(OnceboxError):
    """A device, a pipe or a socket is there: it has no bytes to be had or replaced."""

    code = "NOT_A_FILE"
    status = 409
    title = "It is not a regular file"


class DirectoryNotEmpty(OnceboxError):
    """The directory is not empty, and was not to be removed with what is in it; or the fences lie below it."""

    code = "DIRECTORY_NOT_EMPTY"
    status = 409
    title = "The directory is not empty"


class PreconditionFailed(OnceboxError):
    """The file is not, or is no longer, what ``If-Match`` or ``If-None-Match`` asked for; nothing was changed."""

    code = "PRECONDITION_FAILED"
    status = 412
    title = "Precondition failed"


class FilePermissionDenied(OnceboxError):
    """The user may not do this with the file."""

    code = "FILE_PERMISSION_DENIED"
    status = 403
    title = "Permission denied"


class FileTooLarge(OnceboxError):
    """The file is over ``ONCEBOX_MAX_FILE``; nothing is left of it."""

    code = "FILE_TOO_LARGE"
    status = 413
    title = "File too large"


class DiskFull(OnceboxError):
    """The sandbox's disk is full; nothing is left of the file."""

    code = "DISK_FULL"
    status = 507
    title = "The disk is full"


def _leaves(base: type[OnceboxError]) -> list[type[OnceboxError]]:
    found = []
    for sub in base.__subclasses__():
        found += [sub, *_leaves(sub)]
    return found


BY_CODE: Mapping[str, type[OnceboxError]] = {
    cls.code: cls for cls in reversed(_leaves(OnceboxError)) if cls is not NotJson
}
"""The class of each problem code."""
