"""Faults on order, for tests: routes under `/_dev`, there only with `--dev-controls`; they ask for no key.

| request | does |
| --- | --- |
| `POST /_dev/sandboxes/{id}/execd {"action": "kill"}` | the daemon dies: its endpoint resets connections, the proxy answers 502 `BACKEND_RESPONSE_FAILED`, commands live on, nothing times them out |
| `... {"action": "start"}` | a dead daemon is started: an empty table, files and processes as they are |
| `... {"action": "restart"}` | both |
| `POST /_dev/sandboxes/{id}/container {"action": "restart", "filesystem": "kept" or "new"}` | all processes die, the first one starts anew with a daemon with an empty table; `new`: everything but volumes is empty again (plain mode: not the machine's `/tmp`) |
| `... /pod {"action": "delete", "seconds": 10}` | with `--like kubernetes`, as all of `pod`: the pod is made anew, in so many seconds |
| `... /pod {"action": "kill"}` | its first process is killed |
| `... /pod {"action": "evict"}` | it is taken from its node, and no other is made |
| `... /pod {"action": "node", "reports": false}` | its node's kubelet is silent, or (`true`) is back |
| `POST /_dev/cluster {"keeps": 1}` | so many creates from now on are not taken back when they time out, though their caller is told so |
| `POST /_dev/faults {"create_delay": 2.5, "create_reply": "drop", "count": 3}` | orders a fault for the next `count` (default 1) requests of a kind |
| `GET /_dev/faults`, `DELETE /_dev/faults` | what is still due; forgets it |
| `GET /_dev/stats`, `DELETE /_dev/stats` | counters by kind, `bytes` of file and log reads, `outputs` (file reads of commands' output), `seconds` since the start; begins anew |

A fault's fields are `{kind}_delay` (seconds), `{kind}_reply`, `{kind}_status` (answered instead, not
carried out), `{kind}_body` and `{kind}_content_type` (of that answer); kinds are those of the stats
(`stats.KINDS`). Replies: `drop` (carried out, the connection is cut without a byte of the answer),
`drop_before` (cut, not carried out), and for `submit` `cut_before_init`, `cut_after_init`,
`cut_after_complete` (carried out; the stream is cut there).
"""  # noqa: E501 - a table

from __future__ import annotations

import re
from typing import Any

from aiohttp import web

from . import replies
from .kubernetes import REMADE_SECONDS, Pods
from .replies import Refused
from .requests import parse_json
from .sandboxes import Sandboxes
from .stats import KINDS, Fault, Faults, Stats

_SANDBOX = re.compile(r"/_dev/sandboxes/([^/]+)/(execd|container|pod)")
_FIELDS = ("content_type", "delay", "reply", "status", "body")
_CUTS = ("cut_before_init", "cut_after_init", "cut_after_complete")


class DevControls:
    """Carries out what tests order."""

    def __init__(self, sandboxes: Sandboxes, stats: Stats, faults: Faults) -> None:
        self._sandboxes = sandboxes
        self._stats = stats
        self._faults = faults

    async def handle(self, request: web.BaseRequest, path: str) -> web.Response:
        """Dispatch by method and path. Raises `Refused`."""
        match (request.method, path):
            case ("GET", "/_dev/stats"):
                return replies.lifecycle(200, self._stats.view())
            case ("DELETE", "/_dev/stats"):
                fresh = Stats()
                self._stats.started, self._stats.bytes, self._stats.outputs = fresh.started, 0, 0
                self._stats.counts.update(fresh.counts)
                return replies.lifecycle_empty(204)
            case ("GET", "/_dev/faults"):
                return replies.lifecycle(200, self._faults.view())
            case ("DELETE", "/_dev/faults"):
                self._faults.clear()
                return replies.lifecycle_empty(204)
            case ("POST", "/_dev/faults"):
                return self._order(await _object(request))
            case ("POST", "/_dev/cluster"):
                self._pods().keeps_what_it_takes_back = int((await _object(request)).get("keeps", 1))
                return replies.lifecycle_empty(204)
        found = _SANDBOX.fullmatch(path)
        if found is None or request.method != "POST":
            return replies.lifecycle(404, {"detail": "Not Found"})
        sent = await _object(request)
        if found[2] == "execd":
            self._execd(found[1], sent.get("action"))
        elif found[2] == "pod":
            await self._pod(found[1], sent)
        else:
            await self._container(found[1], sent)
        return replies.lifecycle_empty(204)

    def _execd(self, identifier: str, action: Any) -> None:
        sandbox = self._sandboxes.get(identifier)
        if action == "kill":
            self._sandboxes.kill_execd(sandbox)
        elif action in ("start", "restart"):
            self._sandboxes.restart_execd(sandbox)
        else:
            raise _unknown("action", action)

    async def _container(self, identifier: str, sent: dict[str, Any]) -> None:
        if sent.get("action") != "restart":
            raise _unknown("action", sent.get("action"))
        files = sent.get("filesystem", "kept")
        if files not in ("kept", "new"):
            raise _unknown("filesystem", files)
        await self._sandboxes.restart(identifier, files == "new")

    def _pods(self) -> Pods:
        if not isinstance(self._sandboxes, Pods):
            raise Refused(400, "DEV::UNKNOWN", "only with --like kubernetes")
        return self._sandboxes

    async def _pod(self, identifier: str, sent: dict[str, Any]) -> None:
        pods = self._pods()
        match sent.get("action"):
            case "delete":
                await pods.remake(identifier, float(sent.get("seconds", REMADE_SECONDS)))
            case "kill":
                pods.kill_first_process(identifier)
            case "evict":
                await pods.evict(identifier)
            case "node":
                pods.node_reports(identifier, sent.get("reports") is True)
            case action:
                raise _unknown("action", action)

    def _order(self, sent: dict[str, Any]) -> web.Response:
        for kind, fault in parse_faults(sent).items():
            self._faults.add(kind, fault)
        return replies.lifecycle(200, self._faults.view())


def parse_faults(sent: dict[str, Any]) -> dict[str, Fault]:
    """The faults that a request orders, by kind. Raises `Refused` for a name or value that has no meaning."""
    count = sent.get("count", 1)
    if not isinstance(count, int) or count < 1:
        raise _unknown("count", count)
    found: dict[str, Fault] = {}
    for name, value in sent.items():
        if name == "count":
            continue
        kind, field = next(((name[: -len(f) - 1], f) for f in _FIELDS if name.endswith("_" + f)), (name, ""))
        wanted = int | float if field == "delay" else int if field == "status" else str
        allowed = ("drop", "drop_before", *(_CUTS if kind == "submit" else ()))
        if (
            kind not in KINDS
            or not field
            or not isinstance(value, wanted)
            or (field == "reply" and value not in allowed)
        ):
            raise _unknown(name, value)
        setattr(found.setdefault(kind, Fault(count=count)), field, value)
    return found


def _unknown(name: str, value: Any) -> Refused:
    return Refused(400, "DEV::UNKNOWN", f"{name}: {value!r} means nothing here")


async def _object(request: web.BaseRequest) -> dict[str, Any]:
    sent = parse_json(await request.read())
    if not isinstance(sent, dict):
        raise _unknown("body", sent)
    return sent
