"""Which answers of a busy machine are no fault."""

import json

from service.errors import BY_CODE


def fault(path: str, status: int, retry_after: str | None, body: bytes) -> str | None:
    """Why an answer is one of a bug; None: it is not.

    A server error is honest where it says what it is in the documented way, that it can be tried again, and when.
    `/readyz` is there to say 503, with its reasons.
    """
    if status < 500:
        return None
    try:
        told = json.loads(body)
    except ValueError:
        return f"{status} without a problem"
    if not isinstance(told, dict):
        return f"{status} without a problem"
    if path == "/readyz" and status == 503:
        return None if told.get("reasons") else "not ready without a reason"
    known = BY_CODE.get(str(told.get("code")))
    if known is None or known.status != status or not known.retryable:
        return f"{status} {told.get('code')}"
    if told.get("retryable") is not True or not (retry_after or "").isdecimal():
        return f"{status} {told.get('code')} that does not say when to try again"
    return None
