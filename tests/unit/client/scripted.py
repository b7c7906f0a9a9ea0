"""A network that gives the answers of a list, one a request, and takes note of what was sent and slept."""

from __future__ import annotations

import json
from typing import Any

from service.client import AsyncClient, Client
from service.client.steps import Answer, Dropped, Request
from tests.unit.client.fake_service import FakeService, answer
from tests.unit.client.virtual import Clock, Undisturbed, hooks

DROPPED = Dropped("the connection broke")
PAGE = Answer(502, {"content-type": "text/html"}, b"<html>Bad Gateway</html>")


class Scripted(Undisturbed):
    """Each reply may be paired with the seconds that it takes."""

    def __init__(self, *replies: Answer | Dropped | tuple[float, Answer | Dropped]) -> None:
        super().__init__(FakeService({}), Clock())
        self.replies = list(replies)

    def deliver(self, request: Request) -> Answer | Dropped:
        self.requests.append(request)
        reply = self.replies.pop(0)
        if isinstance(reply, tuple):
            self.clock.now += reply[0]
            return reply[1]
        return reply

    @property
    def keys(self) -> list[str]:
        return [request.headers["Idempotency-Key"] for request in self.requests]

    def client(self, **options: Any) -> Client:
        return Client("http://fake", _hooks=hooks(self, self.clock), **options)

    def async_client(self, **options: Any) -> AsyncClient:
        return AsyncClient("http://fake", _hooks=hooks(self, self.clock), **options)


def job(state: str = "running", **more: Any) -> dict[str, Any]:
    """A job's message."""
    return {"command_id": "cmd_1", "sandbox_id": "sb-1", "state": state, "timeout": 600, **more}


def read(state: str = "running", output: str = "", cursor: str | None = "c0", **more: Any) -> Answer:
    """An answer to a job's GET."""
    return answer(200, job(state, output=output, cursor=cursor, **more))


def done(output: str = "", **more: Any) -> Answer:
    """The last answer to a job's GET."""
    return read("exited", output, None, exit_code=0, output_complete=True, **more)


def sandbox(**more: Any) -> dict[str, Any]:
    """A sandbox's message."""
    return {"sandbox_id": "sb-1", "state": "running", "ready": True, **more}


def body(request: Request) -> Any:
    """What was sent."""
    assert isinstance(request.body, bytes)
    return json.loads(request.body)
