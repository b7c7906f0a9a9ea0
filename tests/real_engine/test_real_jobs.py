"""Commands on a real engine: followed, cancelled, timed out, read through; and what a sync exec gives."""

import asyncio
import secrets
from typing import Any

import aiohttp
import psutil
import pytest

from tests.real_engine.engine_rig import EXECD_PID, RealRig

pytestmark = [pytest.mark.acceptance, pytest.mark.integration]

MIB = 1 << 20
LARGE = 300 * MIB
ROOM = 64 * MIB
"""What a log of any size may cost a replica, and the daemon."""


@pytest.mark.parametrize("mode", ["auto", "always"])
async def test_a_job_is_followed_to_its_end_on_another_replica(real: RealRig, mode: str) -> None:
    await real.start_on(mode=mode)
    sandbox_id = await real.ready_sandbox()
    command = "echo $WHO in $PWD; for i in 1 2 3; do echo $i; sleep 0.5; done; echo ü€ >&2; exit 7"
    body = {"sandbox_id": sandbox_id, "command": command, "cwd": "/tmp", "env": {"WHO": "me"}, "timeout": 60}
    started = await real.caller.send("POST", f"{real.urls[0]}/v1/exec-jobs", json=body, key=secrets.token_hex(4))
    assert started.status == 202, started
    job, output = await real.whole(started.command_id, replica=1)
    assert output == "me in /tmp\n1\n2\n3\nü€\n"
    assert (job["state"], job["exit_code"], job["fenced"]) == ("exited", 7, True)
    assert job["output_complete"]


async def test_one_key_runs_once__twenty_at_once(real: RealRig) -> None:
    await real.start_on()
    sandbox_id = await real.ready_sandbox()
    command = real.command("m", then="sleep 1")
    answers = await asyncio.gather(
        *(real.caller.submit(real.urls[n % 2], sandbox_id, command, key="once") for n in range(20))
    )
    assert {answer.status for answer in answers} == {202}
    (command_id,) = {answer.command_id for answer in answers}
    job, output = await real.whole(command_id)
    assert (job["exit_code"], output) == (7, "out-m\n")
    assert await real.ran(sandbox_id) == ["m"]


@pytest.mark.parametrize("mode", ["auto", "always"])
async def test_a_sync_exec_gives_both_outputs_as_printed(real: RealRig, mode: str) -> None:
    await real.start_on(mode=mode)
    sandbox_id = await real.ready_sandbox()
    result = await real.short(sandbox_id, r"printf 'a\r\n\nb'; printf '\377e' >&2; exit 3", encoding="utf8")
    assert (result["exit_code"], result["stdout"], result["stderr"]) == (3, "a\r\n\nb", "�e")
    late = await real.short(sandbox_id, "echo early; sleep 30", timeout=1)
    assert (late["timed_out"], late["stdout"]) == (True, "early\n")
    killed = await real.short(sandbox_id, "kill -SEGV $$")
    assert (killed["exit_code"], killed["timed_out"]) == (139, False)
    # Sent to one replica, asked for at the other.
    shown = await real.caller.job(real.urls[1], killed["command_id"])
    assert (shown.body["kind"], shown.body["exit_code"]) == ("exec", 139)


async def test_a_cancel_and_a_timeout_end_the_processes(real: RealRig) -> None:
    await real.start_on()
    sandbox_id = await real.ready_sandbox()
    stubborn = "trap '' TERM; echo up; sleep 4711 & wait; sleep 4711"
    cancelled = await real.caller.submit(real.urls[0], sandbox_id, stubborn, key=None)
    timed = await real.caller.submit(real.urls[0], sandbox_id, "echo up; sleep 4711", key=None, timeout=2)
    await asyncio.sleep(1)
    url = f"{real.urls[1]}/v1/exec-jobs/{cancelled.command_id}"
    assert (await real.caller.send("DELETE", url)).status == 202
    (first, out), (second, out2) = await asyncio.gather(
        real.whole(cancelled.command_id), real.whole(timed.command_id, replica=1)
    )
    assert (first["state"], out) == ("cancelled", "up\n"), first
    assert (second["state"], second["timed_out"], out2) == ("timed_out", True, "up\n"), second
    left = await real.short(sandbox_id, 'cat /proc/[0-9]*/cmdline | tr "\\0" " " | grep -c "sleep 471[1]" || :')
    assert left["stdout"] == "0\n"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["auto", "always"])
async def test_a_large_log_is_read_through_in_flat_memory(real: RealRig, mode: str) -> None:
    """One read of a log by the daemon's own call takes three times its size there."""
    await real.start_on(mode=mode, replicas=1)
    sandbox_id = await real.ready_sandbox(resources={"cpu": "2", "memory": "512Mi"})
    line = 64 * 1024
    command = (
        f"head -c {line} /dev/zero | tr '\\0' x >/tmp/block; for i in $(seq {LARGE // line}); do cat /tmp/block; done"
    )
    started = await real.caller.submit(real.urls[0], sandbox_id, command, key=None, timeout=250)
    replica = psutil.Process(real.replicas[0].process.pid)
    execd_before, replica_before, peak = await real.execd_peak(sandbox_id), replica.memory_info().rss, 0
    total, cursor = 0, None
    async with aiohttp.ClientSession() as session:
        while True:
            query: dict[str, Any] = {"limit": 8 * MIB, "wait": 5, **({"cursor": cursor} if cursor else {})}
            async with session.get(f"{real.urls[0]}/v1/exec-jobs/{started.command_id}", params=query) as reply:
                body = await reply.json()
            assert not body["output"].strip("x")
            total += len(body["output"])
            peak = max(peak, replica.memory_info().rss)
            cursor = body["cursor"]
            if cursor is None:
                break
        assert (body["state"], body["exit_code"], total) == ("exited", 0, LARGE)
        async with session.get(f"{real.urls[0]}/v1/exec-jobs/{started.command_id}/output") as raw:
            sizes = [len(chunk) async for chunk in raw.content.iter_chunked(MIB)]
            peak = max(peak, replica.memory_info().rss)
    assert sum(sizes) == LARGE
    assert peak - replica_before < ROOM
    assert await real.execd_peak(sandbox_id) - execd_before < ROOM


async def test_results_outlive_the_sandbox(real: RealRig) -> None:
    await real.start_on()
    sandbox_id = await real.ready_sandbox()
    ended = await real.caller.submit(real.urls[0], sandbox_id, "echo kept; exit 5", key=None)
    await real.whole(ended.command_id)
    running = await real.caller.submit(real.urls[0], sandbox_id, "echo so far; sleep 60", key=None)
    await asyncio.sleep(1)
    assert (await real.caller.send("DELETE", f"{real.urls[1]}/v1/sandboxes/{sandbox_id}")).status == 204
    job, output = await real.whole(ended.command_id, replica=1)
    assert (job["state"], job["exit_code"], output) == ("exited", 5, "kept\n")
    job, output = await real.whole(running.command_id)
    assert (job["state"], job["reason"], output) == ("lost", "sandbox_gone", "so far\n")


@pytest.mark.parametrize("mode", ["auto", "never", "always"])
async def test_asking_a_daemon_costs_it_no_connection(real: RealRig, mode: str) -> None:
    """Its own proxy onto itself, where a direct endpoint leads, leaves one open for ten minutes after each request."""
    await real.start_on(mode=mode, replicas=1)
    sandbox_id = await real.ready_sandbox()
    for _ in range(10):
        await asyncio.gather(*(real.short(sandbox_id, ":") for _ in range(10)))
    files = await real.short(sandbox_id, f"ls /proc/$({EXECD_PID})/fd | wc -l")
    assert int(files["stdout"]) < 100
