"""Behind the balancers that ship, nobody is taken for this machine."""

import asyncio
from pathlib import Path

import pytest
import urllib3

from tests.acceptance.http_rig import Replica
from tests.support import balancer
from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import Spawner
from tests.support.redis_server import redis_executable
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.acceptance

SPELLINGS = ["/metrics", "/%6detrics", "/metrics?", "/metrics?x=1", "/v1/metrics"]
CALLERS: list[dict[str, str]] = [
    {"Host": "localhost"},
    {"Host": "127.0.0.1:8700"},
    {"Host": "localhost", "Connection": "close, X-Forwarded-For"},
    {"Host": "localhost", "X-Forwarded-For": "127.0.0.1"},
]


def asked(url: str, headers: dict[str, str]) -> list[urllib3.BaseHTTPResponse]:
    return [urllib3.request("GET", url + each, headers=headers, retries=False, timeout=PATIENCE) for each in SPELLINGS]


@pytest.mark.skipif(balancer.haproxy() is None, reason="there is no haproxy")
def test_the_haproxy_that_ships_passes_no_metrics_on_even_without_a_token(spawn: Spawner) -> None:
    replica = Replica(spawn)
    url = f"http://{LOOPBACK}:{free_port()}"
    argv, env, _ = balancer.command(url.removeprefix("http://"), [replica.url.removeprefix("http://")] * 3)
    spawn(argv, name="haproxy", env=env).wait_for_url(f"{url}/readyz")
    for headers in CALLERS:
        for answer in asked(url, headers):
            assert answer.status >= 400, headers
            assert b"oncebox_build_info" not in answer.data
    assert replica.ask("GET", "/metrics").status == 200, "from this machine itself"


@pytest.mark.skipif(
    redis_executable() is None, reason="no Redis server of version 7 or newer; `make test` installs one"
)
async def test_the_stack_gives_metrics_to_its_token_alone_whatever_stands_in_front(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(balancer, "haproxy", lambda: None)  # ours adds nothing to what it passes on
    async with Stack(tmp_path) as stack:
        for url in (stack.url, stack.replica_url(0)):
            for headers in CALLERS:
                answers = await asyncio.to_thread(asked, url, headers)
                assert {answer.status for answer in answers} <= {401, 404, 422}
        bearer = {"Authorization": f"Bearer {stack.metrics_token}"}
        assert (await asyncio.to_thread(asked, stack.replica_url(1), bearer))[0].status == 200
