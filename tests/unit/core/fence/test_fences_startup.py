"""The startup variables of a daemon: read beside the boot mark, remembered for a while, for so many sandboxes."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from service.core.fence import client, startup
from service.core.fence.client import Fences, Surroundings
from service.ports.engine import Engine, EngineError, FileMissing, FileRange, ShortResult, Unclear

BOOT = b"1" * 32 + b" 7\n"


class Daemons:
    """Daemons of any number of sandboxes, with the same files."""

    def __init__(self, **files: bytes | EngineError | None) -> None:
        self.files = {"environ": b"BASH_ENV=/x\0A=b\0", **files}
        self.read: list[tuple[str, str]] = []
        self.blank: list[Mapping[str, str]] = []
        self.silent = False

    async def read_lines(self, sandbox_id: str, path: str, limit: int) -> bytes | None:
        self.read.append((sandbox_id, path))
        if self.silent:
            await asyncio.Event().wait()
        found = self.files.get("environ" if path == startup.ENVIRONMENT else path, FileMissing("no"))
        if isinstance(found, EngineError):
            raise found
        return found

    async def read_file(self, sandbox_id: str, path: str, offset: int, length: int) -> FileRange:
        return FileRange(0, BOOT, len(BOOT))

    async def run_short(self, sandbox_id: str, command: str, *, timeout: float, env: Mapping[str, str]) -> ShortResult:
        self.blank.append(env)
        return ShortResult(0, "")

    def fences(self) -> Fences:
        return Fences(cast(Engine, cast(Any, self)), "/tmp/.oncebox")


async def test_a_sandbox_is_asked_once_for_all_its_submissions_and_our_own_commands() -> None:
    daemons = Daemons()
    asked = daemons.fences()
    for _ in range(20):
        found = await asked.surroundings("a")
        assert found.boot is not None
        assert found.startup == {"BASH_ENV": "/x"}
        await asked.look("a", "0" * 32)
    assert daemons.read == [("a", startup.ENVIRONMENT)]
    assert daemons.blank == [{"BASH_ENV": ""}] * 20


async def test_after_a_while_one_asks_again_and_the_others_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    daemons = Daemons()
    asked = daemons.fences()
    assert client.REMEMBERED_FOR == 60, "docs/concepts/fence.md: a minute"
    monkeypatch.setattr(client, "REMEMBERED_FOR", 0.0)
    await asked.startup("a")
    daemons.silent = True
    again = asyncio.ensure_future(asked.startup("a"))
    await asyncio.sleep(0)
    assert await asked.startup("a") == {"BASH_ENV": "/x"}
    assert len(daemons.read) == 2
    again.cancel()
    daemons.silent = False
    daemons.files["environ"] = b"ENV=/y\0"
    asked._startup.clear()
    assert await asked.startup("a") == {"ENV": "/y"}


async def test_only_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REMEMBERED", 3)
    daemons = Daemons()
    asked = daemons.fences()
    for name in ("a", "b", "c", "d", "b"):
        await asked.startup(name)
    assert set(asked._startup) == {"b", "c", "d"}
    assert [sandbox for sandbox, _ in daemons.read] == ["a", "b", "c", "d"]


async def test_what_a_daemon_adds_from_its_file_counts_more() -> None:
    daemons = Daemons(
        environ=b"LC_ALL=xx\0EXECD_ENVS=/opt/envs\0LD_PRELOAD=/a\0", **{"/opt/envs": b"LC_ALL=${LC_ALL}Y\nENV=/e"}
    )
    assert await daemons.fences().startup("a") == {"LC_ALL": "xxY", "LD_PRELOAD": "/a", "ENV": "/e"}


@pytest.mark.parametrize("why", [FileMissing("no"), Unclear("denied", code="RUNTIME_ERROR", status=500), None])
async def test_what_a_daemon_can_not_read_is_taken_for_nothing(why: EngineError | None) -> None:
    assert await Daemons(environ=why).fences().surroundings("a") == Surroundings(await Daemons().fences().boot("a"))


async def test_a_daemon_that_does_not_answer_is_no_daemon_without_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = Daemons(environ=Unclear("lost"))
    asked = lost.fences()
    with pytest.raises(Unclear):
        await asked.surroundings("a")
    lost.files["environ"] = b"ENV=/y\0"
    assert await asked.startup("a") == {"ENV": "/y"}
    monkeypatch.setattr(client, "SHORT", 0.01)
    silent = Daemons()
    silent.silent = True
    with pytest.raises(Unclear):
        await silent.fences().startup("a")
