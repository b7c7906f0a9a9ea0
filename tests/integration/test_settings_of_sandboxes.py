"""What the settings' page says about new sandboxes: their image, and the directories of their owners."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from service import errors
from service.messages import CreateSandbox
from tests.integration.core_rig import KEY, Rig, execute

pytestmark = pytest.mark.integration


async def test_without_a_volume_an_owner_is_refused_and_nothing_is_made(here: Rig) -> None:
    core = await here.replica(volume=None)
    before = (await core.engine.list_sandboxes({})).items
    with pytest.raises(errors.InvalidRequest) as refused:
        await core.sandboxes.create("default", CreateSandbox(workspace_owner="alice"), None)
    assert [error.field for error in refused.value.errors] == ["workspace_owner"]
    assert (await core.engine.list_sandboxes({})).items == before


async def test_the_named_directories_of_an_owner_are_mounted_where_the_setting_says(here: Rig) -> None:
    core = await here.replica(workspace_dirs=(("work", "/workspace"), ("state", "/root/.tool")))
    box = await here.sandbox(core, workspace_owner="carol")
    await execute(core, box, "echo a > here; echo b > ~/.tool/there")
    volume = Path(here.settings.volume.removeprefix("host:"))  # type: ignore[union-attr]
    assert (volume / "carol" / "work" / "here").read_text() == "a\n"
    assert (volume / "carol" / "state" / "there").read_text() == "b\n"


async def test_a_sandbox_that_names_no_image_has_the_one_of_the_settings(here: Rig) -> None:
    core = await here.replica(image="node:22")
    for request, image in (({}, "node:22"), ({"image": "python:3.13"}, "python:3.13")):
        box = await here.sandbox(core, **request)
        async with (
            aiohttp.ClientSession(headers={"OPEN-SANDBOX-API-KEY": KEY}) as session,
            session.get(f"{here.engine_url}/v1/sandboxes/{box}") as answer,
        ):
            assert (await answer.json())["image"]["uri"] == image
