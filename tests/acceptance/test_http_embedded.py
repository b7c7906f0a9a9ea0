"""The stack inside a process of the user's: for one command, and under another ASGI server."""

import asyncio
from pathlib import Path
from typing import Any, cast

import msgspec
import psutil
import pytest
import urllib3

from service.app import app_of
from service.server.embedded import embedded
from service.settings import Settings
from tests.acceptance.http_rig import Replica
from tests.support.processes import Spawner
from tests.support.waiting import PATIENCE
from tests.unit.api.fakes import ask, post

pytestmark = pytest.mark.acceptance


async def test_the_embedded_stack_serves_and_leaves_nothing_behind() -> None:
    http = urllib3.PoolManager(retries=False)
    before = psutil.Process().children(recursive=True)
    async with embedded(Settings(bind="0.0.0.0:1", tenants="of-no-use-here.toml")) as url:
        assert url.startswith("http://127.0.0.1:")
        created = await asyncio.to_thread(http.request, "POST", url + "/v1/sandboxes", json={}, timeout=PATIENCE)
        assert created.status == 201
        below = [child for child in psutil.Process().children(recursive=True) if child not in before]
        assert below
    with pytest.raises(urllib3.exceptions.HTTPError):
        await asyncio.to_thread(http.request, "GET", url + "/healthz", timeout=5)
    _, alive = psutil.wait_procs(below, timeout=PATIENCE)
    assert not alive


@pytest.mark.parametrize("place", ["not set", "host"])
def test_an_owner_s_files_outlive_the_sandbox_and_are_nobody_else_s(spawn: Spawner, tmp_path: Path, place: str) -> None:
    """With nothing set they lie under the local engine's root."""
    replica = Replica(spawn, {"ONCEBOX_VOLUME": f"host:{tmp_path}/volumes"} if place == "host" else {})

    def execute(sandbox: str, command: str) -> str:
        ran = replica.ask("POST", "/v1/exec", {"sandbox_id": sandbox, "command": command})
        assert ran.status == 200, ran.data
        return str(ran.json()["stdout"])

    first = replica.sandbox(workspace_owner="alice")
    execute(first, "echo kept > notes")
    assert replica.ask("DELETE", f"/v1/sandboxes/{first}").status == 204
    assert execute(replica.sandbox(workspace_owner="alice"), "cat notes") == "kept\n"
    assert execute(replica.sandbox(workspace_owner="bob"), "ls") == ""
    assert (tmp_path / "volumes" / "alice" / "workspace" / "notes").exists() == (place == "host")


async def test_the_application_builds_itself_under_any_server_with_a_lifespan() -> None:
    app = app_of(Settings(shutdown_grace=1))
    with pytest.raises(RuntimeError, match="lifespan"):
        await ask(app, "GET", "/healthz")

    incoming = asyncio.Queue[dict[str, Any]]()
    sent = asyncio.Queue[dict[str, Any]]()
    incoming.put_nowait({"type": "lifespan.startup"})
    running: Any = app({"type": "lifespan"}, incoming.get, cast(Any, sent.put))
    lifespan = asyncio.create_task(running)
    assert (await asyncio.wait_for(sent.get(), PATIENCE))["type"] == "lifespan.startup.complete"
    sandbox = (await post(app, "/v1/sandboxes", {})).json["sandbox_id"]
    ran = await post(app, "/v1/exec", {"sandbox_id": sandbox, "command": "echo hi"})
    assert msgspec.json.decode(ran.body)["stdout"] == "hi\n"
    incoming.put_nowait({"type": "lifespan.shutdown"})
    assert (await asyncio.wait_for(sent.get(), PATIENCE))["type"] == "lifespan.shutdown.complete"
    await lifespan
