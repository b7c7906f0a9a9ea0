"""schemathesis over the OpenAPI document, against a running replica: no bug, and every answer is as documented.

`make test` takes about a minute on each of the embedded default and Redis; `make fuzz` as long as it is told to
(ONCEBOX_TEST_FUZZ_SECONDS).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.http_rig import Replica
from tests.integration.core_rig import KEY, local_engine
from tests.support.processes import Spawner
from tests.support.redis_server import RedisServer

pytestmark = pytest.mark.acceptance

SECONDS = int(os.environ.get("ONCEBOX_TEST_FUZZ_SECONDS", "45"))
CHECKS = (
    "no_bug,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,unsupported_method"
)


@pytest.fixture
def engine_url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "engine").mkdir()
    with local_engine(str(tmp_path / "engine")) as url:
        yield url


@pytest.mark.timeout(SECONDS * 4 + 240)
def test_on_the_embedded_default(spawn: Spawner) -> None:
    fuzz(spawn, Replica(spawn))


@pytest.mark.integration
@pytest.mark.timeout(SECONDS * 4 + 240)
def test_on_redis(spawn: Spawner, redis_server: RedisServer, engine_url: str) -> None:
    env = {
        "ONCEBOX_REDIS_URL": redis_server.url, "ONCEBOX_ENGINE_URL": engine_url, "ONCEBOX_ENGINE_API_KEY": KEY,
        "ONCEBOX_SHUTDOWN_DELAY": "0",
    }  # fmt: skip
    fuzz(spawn, Replica(spawn, env))


def fuzz(spawn: Spawner, replica: Replica) -> None:
    sandboxes = [replica.sandbox(), replica.sandbox(metadata={"team": "red"})]
    jobs = [replica.submit(sandboxes[0], command) for command in ("echo over", "seq 100000", "sleep 600")]
    ran = replica.ask("POST", "/v1/exec", {"sandbox_id": sandboxes[0], "command": "true"}).json()
    jobs.append(str(ran["command_id"]))
    command: list[str | Path] = [
        Path(sys.executable).parent / "schemathesis", "run", f"{replica.url}/openapi.json",
        "--max-time", str(SECONDS), "--max-examples", str(max(20, SECONDS)), "--phases", "coverage,fuzzing",
        "--checks", CHECKS, "--continue-on-failure", "--request-timeout", "30", "--warnings", "off", "--no-color",
        "--suppress-health-check", "all", "--generation-database", "none",
    ]  # fmt: skip
    env = {
        "SCHEMATHESIS_HOOKS": "tests.fuzz.hooks", "PYTHONPATH": str(Path(__file__).parents[2]), "NO_PROXY": "*",
        "ONCEBOX_TEST_FUZZ_SANDBOXES": " ".join(sandboxes), "ONCEBOX_TEST_FUZZ_JOBS": " ".join(jobs),
    }  # fmt: skip
    process = spawn(command, name="schemathesis", env=env)
    code = process.wait(timeout=SECONDS * 2 + 60)
    if code != 0 and "= FAILURES =" not in process.stdout:
        # Only its client gave up on an answer: an exec in a sandbox that another case has just paused.
        process = spawn(command, name="schemathesis-again", env=env)
        code = process.wait(timeout=SECONDS * 2 + 60)
    assert '"level":"error"' not in replica.process.stderr, errors(replica)
    assert code == 0, process.stdout[-20_000:]
    numbers = {name: int(number) for name, number in re.findall(r"^ +(\w+): ([0-9]+)", process.stdout, re.MULTILINE)}
    late = "Time limit reached" in process.stdout  # a busy machine
    assert numbers["Selected"] > 10, process.stdout
    assert numbers["Tested"] == numbers["Selected"] or (late and numbers["Tested"] > 5), process.stdout
    answered = re.findall(r'"status":([0-9]{3})', replica.process.stderr)
    refused = [status for status in answered if status.startswith("5")]
    assert len(refused) < len(answered) / 4, "most of it was never tried"
    assert replica.ask("GET", "/healthz").status == 200
    job, output = replica.follow(replica.submit(replica.sandbox(), "echo still here"))
    assert (job["state"], output) == ("exited", b"still here\n")


def errors(replica: Replica) -> str:
    return "\n".join(line for line in replica.process.stderr.splitlines() if '"level":"error"' in line)[:8000]
