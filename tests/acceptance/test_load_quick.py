"""The load run on a few sandboxes: the whole stack, a replica killed, one rolled, Redis restarted."""

from pathlib import Path

import pytest

from tests.load.run import run
from tests.support.redis_server import redis_executable

pytestmark = pytest.mark.acceptance

SANDBOXES = 50


@pytest.mark.timeout(600)
@pytest.mark.skipif(
    redis_executable() is None, reason="no Redis server of version 7 or newer; `make test` installs one"
)
async def test_every_job_runs_once_and_is_told_right_while_the_stack_dies_in_turns(tmp_path: Path) -> None:
    done = await run(SANDBOXES, tmp_path)
    assert [(check.rule, check.found) for check in done.found if not check.passed] == []
    assert done.facts["jobs outlived the troubles"] == "yes"
    page = done.html()
    assert page.count("<svg") == 5
    assert "http" not in page.replace("http://www.w3.org", ""), "the report needs nothing from elsewhere"
