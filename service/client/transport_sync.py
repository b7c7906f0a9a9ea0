"""Requests over urllib3: no redirects, no retries of its own, and a read timeout on each."""

from __future__ import annotations

import math
import os
import threading
import time

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError, NewConnectionError, ProtocolError
from urllib3.exceptions import SSLError as PoolSSLError
from urllib3.exceptions import TimeoutError as PoolTimeoutError

from .steps import Answer, Dropped, Request
from .transfers import LocalFault, Receiver
from .transport import CONNECT_TIMEOUT, SLOW_BODY, Target, dropped_by_peer, dropped_by_tls, sent

POOL = 256
"""Idle connections that are kept, which bounds nothing: more threads make more connections."""
BLOCK = 256 * 1024


class SyncTransport:
    """Thread-safe. A forked process gets connections of its own."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._pool: urllib3.PoolManager | None = None

    def _connections(self) -> urllib3.PoolManager:
        if self._pid != os.getpid():
            # The parent's sockets are not ours to speak on; its lock may be held by a thread that is not
            # here.
            self._begin()
        with self._lock:
            if self._pool is None:
                self._pool = urllib3.PoolManager(num_pools=4, maxsize=POOL, block=False, retries=False)
            return self._pool

    def send(self, request: Request) -> Answer | Dropped:
        """Sends ``request`` once and reads its answer to the end."""
        give_up = math.inf if request.is_transfer else time.monotonic() + request.read_timeout + SLOW_BODY
        body, headers = sent(request)
        try:
            response = self._connections().request(
                request.method,
                self._target.url + request.path,
                body=body,
                headers={**self._target.headers, **headers},
                redirect=False,
                preload_content=False,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT, read=request.read_timeout),
            )
            return _whole(response, give_up, request.receiver)
        except (HTTPError, OSError) as error:
            return _dropped(error)
        except LocalFault as fault:
            raise fault.cause from None

    def reset(self) -> None:
        """Forgets the idle connections. Those in use end with their requests."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.clear()

    close = reset


def _whole(response: urllib3.BaseHTTPResponse, give_up: float, receiver: Receiver | None) -> Answer | Dropped:
    headers = {name.lower(): value for name, value in response.headers.items()}
    blocks: list[bytes] = []
    try:
        taken = receiver is not None and receiver.begins(response.status, headers)
        take = receiver.take if receiver is not None and taken else blocks.append
        for block in response.stream(BLOCK, decode_content=not taken):
            take(block)
            if time.monotonic() > give_up:
                response.close()
                return Dropped("the answer came too slowly")
    except BaseException:
        response.close()
        raise
    response.release_conn()
    return Answer(response.status, headers, b"".join(blocks))


def _dropped(error: HTTPError | OSError) -> Dropped:
    if isinstance(error, NewConnectionError):
        return Dropped(f"no connection: {error}", cause=error, unsent=True)
    if isinstance(error, PoolTimeoutError):
        return Dropped("no answer in time", cause=error)
    if isinstance(error, PoolSSLError):
        return dropped_by_tls(error.args[0] if error.args else error)
    if isinstance(error, LocationValueError):
        return Dropped(f"no URL: {error}", permanent=True, cause=error, unsent=True)
    if isinstance(error, ProtocolError):
        return dropped_by_peer(str(error), error)
    return Dropped(str(error) or type(error).__name__, cause=error)
