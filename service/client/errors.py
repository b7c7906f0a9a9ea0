"""The errors that arise on the client's side, under the same base as the server's problem codes."""

# ruff: noqa: TID252  (relative, so that the client also works under the name that `oncebox.py` gives it)
from __future__ import annotations

from ..errors import OnceboxError


class ConnectionFailed(OnceboxError, ConnectionError):
    """The service could not be reached, or the connection went dead before the answer was whole.

    Whether the request arrived is not known; every request of the SDK is safe to repeat with the same key.
    Also a built-in ``ConnectionError``.
    """

    code = "CONNECTION_FAILED"
    status = 0
    title = "The service could not be reached"
    retryable = True


class DeadlineExceeded(OnceboxError, TimeoutError):
    """The time that the caller gave is over. The job goes on; ``client.job(error.command_id)`` is its handle.

    Also a built-in ``TimeoutError``. Where the last tries failed, ``__cause__`` is the last failure.
    """

    code = "DEADLINE_EXCEEDED"
    status = 0
    title = "The deadline passed"
    retryable = True


class UnexpectedAnswer(OnceboxError):
    """An answer that Oncebox does not give: a gateway's page, a redirect, a body that can't be read.

    ``status`` is the HTTP status of that answer.
    """

    code = "UNEXPECTED_ANSWER"
    status = 0
    title = "Unexpected answer"
