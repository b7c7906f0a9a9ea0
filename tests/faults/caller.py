"""A caller of the service that keeps no connection and leaves every retry to the test."""

import asyncio
import itertools
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp

from service.messages import JobState
from tests.faults.inputs import submission
from tests.support.waiting import PATIENCE

RETRIED = {409, 429, 502, 503}
"""Statuses that the contract calls passing, each with `retryable`."""

TERMINAL = {state.value for state in JobState if state.terminal}


@dataclass(frozen=True)
class Answer:
    """What came back; `status` 0: nothing did."""

    status: int
    body: dict[str, Any]
    replayed: bool = False

    @property
    def code(self) -> str:
        """The problem's code, or nothing."""
        return str(self.body.get("code", ""))

    @property
    def command_id(self) -> str:
        return str(self.body["command_id"])

    @property
    def passing(self) -> bool:
        """The contract tells the caller to try again with the same key."""
        return self.status == 0 or (self.status in RETRIED and self.body.get("retryable", True) is not False)


NOTHING = Answer(0, {})


class Caller:
    """Speaks HTTP to any replica. Each request has a connection of its own and `patience` seconds in all."""

    def __init__(self, *, patience: float = PATIENCE) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=patience),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(
        self,
        method: str,
        url: str,
        *,
        json: Any = None,
        key: str | None = None,
        patience: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request, sent once; `NOTHING` where the connection or the patience came to an end first."""
        headers = {**(headers or {}), **({"Idempotency-Key": key} if key is not None else {})}
        timeout = aiohttp.ClientTimeout(total=patience) if patience is not None else None
        try:
            async with self._session.request(method, url, json=json, headers=headers, timeout=timeout) as reply:
                body = await reply.json(content_type=None) if reply.status != 204 else {}
                return Answer(reply.status, body or {}, reply.headers.get("Idempotent-Replayed") == "true")
        except (aiohttp.ClientError, OSError, TimeoutError):
            return NOTHING

    async def submit(
        self,
        url: str,
        sandbox_id: str,
        command: str,
        *,
        key: str | None,
        timeout: int = 60,
        patience: float | None = None,
    ) -> Answer:
        """One `POST /v1/exec-jobs`."""
        job = submission(sandbox_id, command, timeout)
        return await self.send("POST", f"{url}/v1/exec-jobs", json=job, key=key, patience=patience)

    async def submit_until_answered(
        self,
        urls: Iterable[str],
        sandbox_id: str,
        command: str,
        *,
        key: str,
        timeout: int = 60,
        within: float = PATIENCE,
    ) -> Answer:
        """Submits again and again, to one replica after the other, as the contract tells a caller to."""
        places = itertools.cycle(list(urls))
        deadline = asyncio.get_running_loop().time() + within
        while True:
            answer = await self.submit(next(places), sandbox_id, command, key=key, timeout=timeout)
            if not answer.passing or asyncio.get_running_loop().time() > deadline:
                return answer
            await asyncio.sleep(random.uniform(0.05, 0.2))

    async def create(self, url: str, *, key: str | None, patience: float | None = None, **fields: Any) -> Answer:
        """One `POST /v1/sandboxes`."""
        return await self.send("POST", f"{url}/v1/sandboxes", json=fields, key=key, patience=patience)

    async def create_until_answered(
        self, urls: Iterable[str], *, key: str, within: float = PATIENCE, **fields: Any
    ) -> Answer:
        """Creates again and again with one key, to one replica after the other."""
        places = itertools.cycle(list(urls))
        deadline = asyncio.get_running_loop().time() + within
        while True:
            answer = await self.create(next(places), key=key, **fields)
            if not answer.passing or asyncio.get_running_loop().time() > deadline:
                return answer
            await asyncio.sleep(random.uniform(0.05, 0.2))

    async def job(self, url: str, command_id: str, *, cursor: str | None = None) -> Answer:
        """One `GET /v1/exec-jobs/{command_id}`."""
        return await self.send("GET", f"{url}/v1/exec-jobs/{command_id}" + (f"?cursor={cursor}" if cursor else ""))

    async def ended(self, url: str, command_id: str, *, within: float = PATIENCE) -> Mapping[str, Any]:
        """The job, once its state is terminal and its output is read; else as it is after `within` seconds."""
        deadline = asyncio.get_running_loop().time() + within
        while True:
            answer = await self.job(url, command_id)
            over = answer.body.get("state") in TERMINAL and answer.body.get("cursor") is None
            if (answer.status == 200 and over) or asyncio.get_running_loop().time() > deadline:
                return answer.body
            await asyncio.sleep(0.1)

    async def jobs(self, url: str, sandbox_id: str) -> list[dict[str, Any]]:
        """Every job of a sandbox that the list shows."""
        found: list[dict[str, Any]] = []
        token: str | None = None
        while True:
            query = f"sandbox_id={sandbox_id}&page_size=200" + (f"&page_token={token}" if token else "")
            answer = await self.send("GET", f"{url}/v1/exec-jobs?{query}")
            assert answer.status == 200, answer
            found += answer.body["items"]
            token = answer.body["next_page_token"]
            if token is None:
                return found
