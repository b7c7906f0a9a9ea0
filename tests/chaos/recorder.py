"""The history of real processes: its clock, what callers saw, and what the commands themselves wrote down."""

import itertools
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from tests.faults.caller import Answer, Caller
from tests.simulation import history
from tests.simulation.history import AnyEvent, Call, Executed, Seen, Step

What = Literal["create", "submit", "status", "output", "cancel", "list", "delete"]


class Recorder:
    """Writes a history down as it happens. Its clock is the machine's, which commands can read as well."""

    def __init__(self) -> None:
        self.began = time.time()
        self.events: list[AnyEvent] = []

    def now(self) -> float:
        """Seconds since the beginning."""
        return time.time() - self.began

    def add(self, *events: AnyEvent) -> None:
        """Something happened."""
        self.events += events

    def write(self, path: Path) -> None:
        """Keep it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        history.write(path, self.events)

    async def ask(
        self,
        caller: Caller,
        method: str,
        url: str,
        *,
        what: What,
        who: str,
        tenant: str,
        headers: Mapping[str, str],
        json: Any = None,
        patience: float | None = None,
        before: str = "",
        **more: Any,
    ) -> Answer:
        """One request, written down with its answer. ``before``: the output that its caller has already."""
        at = self.now()
        answer, gone = Answer(0, {}), True
        try:
            answer = await caller.send(method, url, json=json, key=more.get("key"), patience=patience, headers=headers)
            gone = False
        finally:
            # A caller that is cancelled has asked all the same.
            told = {} if gone else told_by(answer, what, before)
            self.add(
                Call(
                    at=at, until=self.now(), caller=who, tenant=tenant, what=what, status=answer.status, **told, **more
                )
            )
        return answer


def told_by(answer: Answer, what: What, before: str = "") -> dict[str, Any]:
    """What an answer says, as a history has it."""
    body = answer.body
    if not 200 <= answer.status < 300:
        told = {"code": answer.code, "retryable": body.get("retryable") is True}
        return {**told, "told_id": str(body.get("command_id") or "") if what == "submit" else ""}
    items = body.get("items", [body] if body else [])
    return {"seen": tuple(filter(None, (_seen(item, what, before) for item in items)))}


def _seen(item: Mapping[str, Any], what: What, before: str) -> Seen | None:
    id = item.get("command_id") or item.get("sandbox_id")
    if id is None:
        return None
    if what in ("create", "delete"):
        return Seen(id=str(id), state=item["state"])
    over = what == "output" and item["cursor"] is None
    output = str(item.get("output", "")) if item.get("replace") else before + str(item.get("output", ""))
    return Seen(
        id=str(id),
        state=item["state"],
        exit_code=item["exit_code"],
        reason=item["reason"],
        fenced=item["fenced"],
        over=over,
        output=output if over else None,
        output_complete=bool(item.get("output_complete")),
        steps=tuple(Step(step["state"], step["attempt"]) for step in item.get("history", ())),
    )


# -- what was executed, told by the commands

LIFE = "/tmp/.oncebox-chaos-life"
"""In a file system of its own: its name, made once."""


def command(mark: str, *, ledger: str, sandbox: str, lines: int, seconds: float, code: int, private: bool) -> str:
    """A command that writes down its start and its end, prints so many lines in as many seconds, and exits so."""
    file = shlex.quote(ledger)
    life = (
        f"[ -e {LIFE} ] || {{ date +%N >{LIFE}.$$; ln {LIFE}.$$ {LIFE}; }} 2>/dev/null; l=$(cat {LIFE}); "
        if private
        else "l=0; "
    )
    pause = f"sleep {seconds / lines:.2f}; " if lines else f"sleep {seconds:.2f}; "
    prints = "".join(f"echo {mark} {number}; {pause}" for number in range(lines)) or pause
    # $$ is the shell's own process: two runs of one command differ in it.
    return (
        f'{life}echo "start {mark} $$ {sandbox} $l $(date +%s.%N)" >>{file}; {prints}'
        f'echo "end {mark} $$ {code} $(date +%s.%N)" >>{file}; exit {code}'
    )


def printed(mark: str, lines: int) -> str:
    """All that such a command prints."""
    return "".join(f"{mark} {number}\n" for number in range(lines))


def executions(ledger: str, began: float, lines: Mapping[str, int]) -> list[Executed]:
    """What the ledger tells. ``began``: the beginning of the history; ``lines``: of each mark."""
    starts: dict[tuple[str, str], list[str]] = {}
    ends: dict[tuple[str, str], list[str]] = {}
    for line in ledger.splitlines():
        kind, *words = line.split()
        if kind == "start" and len(words) == 5:
            starts[words[0], words[1]] = words
        elif kind == "end" and len(words) == 4:
            ends[words[0], words[1]] = words
    numbers: dict[tuple[str, str], int] = {}
    counts: dict[str, itertools.count[int]] = {}
    found = []
    for key, (mark, _, sandbox, life, at) in sorted(starts.items(), key=lambda item: float(item[1][4])):
        files = numbers.setdefault((sandbox, life), 0) or next(counts.setdefault(sandbox, itertools.count(1)))
        numbers[sandbox, life] = files
        end = ends.get(key)
        done = (
            {"until": float(end[3]) - began, "exit_code": int(end[2]), "output": printed(mark, lines[mark])}
            if end
            else {}
        )
        found.append(Executed(at=float(at) - began, sandbox=sandbox, mark=mark, files=files, **done))  # type: ignore[arg-type]
    return found
