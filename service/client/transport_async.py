"""Requests over aiohttp: no redirects, no retries of its own, and a read timeout on each."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

from .steps import Answer, Dropped, Request
from .transfers import Content, LocalFault, Receiver
from .transport import CONNECT_TIMEOUT, SLOW_BODY, Target, dropped_by_peer, dropped_by_tls, sent

if TYPE_CHECKING:
    import aiohttp

_FORGOTTEN: list[object] = []
"""Sessions of a parent process. Kept, so that nothing closes its connections under its feet."""


class _Pool:
    """The session of one event loop. Holds the loop, so that no other gets its `id`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession) -> None:
        self.loop = loop
        self.session = session
        self.requests = 0
        self.retired = False


class AsyncTransport:
    """One session for each running event loop; a forked process gets sessions of its own."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._pools: dict[int, _Pool] = {}

    async def _pool(self) -> _Pool:
        if self._pid != os.getpid():
            _FORGOTTEN.append(self._pools)
            self._begin()
        loop = asyncio.get_running_loop()
        known = self._pools.get(id(loop))
        if known is not None:
            return known
        pool = self._pools[id(loop)] = _Pool(loop, self._open())
        await self._drop_closed_loops()
        return pool

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._target.headers,
        )
        # aiohttp repeats a GET by itself when a kept connection drops. The rules here count and pace the
        # tries.
        if hasattr(session, "_retry_connection"):
            session._retry_connection = False
        return session

    async def _drop_closed_loops(self) -> None:
        for name, pool in list(self._pools.items()):
            if pool.loop.is_closed():
                self._pools.pop(name, None)
                await pool.session.close()

    async def send(self, request: Request) -> Answer | Dropped:
        """Sends ``request`` once and reads its answer to the end."""
        import aiohttp
        from yarl import URL

        timeout = aiohttp.ClientTimeout(
            total=None if request.is_transfer else request.read_timeout + SLOW_BODY,
            sock_connect=CONNECT_TIMEOUT,
            sock_read=request.read_timeout,
        )
        pool = await self._pool()
        pool.requests += 1
        body, headers = sent(request)
        try:
            async with pool.session.request(
                request.method,
                URL(self._target.url + request.path, encoded=True),
                data=body if isinstance(body, bytes | None) else _awaited(body),
                headers=headers,
                allow_redirects=False,
                timeout=timeout,
            ) as response:
                return await _whole(response, request.receiver)
        except aiohttp.ClientConnectorCertificateError as error:
            return dropped_by_tls(error.certificate_error)
        except aiohttp.ClientConnectorSSLError as error:
            return dropped_by_tls(error.os_error)
        except aiohttp.InvalidURL as error:
            return Dropped(f"no URL: {error}", permanent=True, cause=error, unsent=True)
        except aiohttp.ClientConnectorError as error:
            return Dropped(f"no connection: {error}", cause=error, unsent=True)
        except TimeoutError as error:
            return Dropped("no answer in time", cause=error)
        except LocalFault as fault:
            raise fault.cause from None
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(request.body, Content) and request.body.fault is not None:
                raise request.body.fault.cause from None
            return dropped_by_peer(str(error) or type(error).__name__, error)
        finally:
            pool.requests -= 1
            if pool.retired and not pool.requests:
                await pool.session.close()

    async def reset(self) -> None:
        """Forgets this loop's idle connections. Those in use end with their requests."""
        pool = self._pools.pop(id(asyncio.get_running_loop()), None)
        if pool is not None:
            pool.retired = True
            if not pool.requests:
                await pool.session.close()

    async def close(self) -> None:
        """Closes this loop's connections."""
        pool = self._pools.pop(id(asyncio.get_running_loop()), None)
        if pool is not None:
            await pool.session.close()
        await self._drop_closed_loops()


async def _whole(response: aiohttp.ClientResponse, receiver: Receiver | None) -> Answer:
    headers = {name.lower(): value for name, value in response.headers.items()}
    if receiver is None or not receiver.begins(response.status, headers):
        return Answer(response.status, headers, await response.read())
    async for block in response.content.iter_any():
        receiver.take(block)
    return Answer(response.status, headers, b"")


async def _awaited(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
