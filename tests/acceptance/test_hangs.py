"""What hangs holds up nothing else, and no replica's end: files, names, pipes, and the event loop itself."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import msgspec
import pytest
import urllib3

from service.tenants import key_digest
from tests.acceptance.http_rig import SERVE, Replica
from tests.support.ports import free_port
from tests.support.processes import Spawner
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.acceptance

ENDS = PATIENCE
"""Seconds in which a replica must have ended that hangs for good where it hangs at all."""
KEY = "obx_key"
TENANTS = f'[acme]\nkeys = ["{key_digest(KEY)}"]\n'

SHORT = {"ONCEBOX_SHUTDOWN_GRACE": "2", "ONCEBOX_SHUTDOWN_DELAY": "0"}

FULL_PIPE = """
import fcntl, os
def full_pipe(onto):
    # A pipe that nobody reads, and that takes nothing more.
    _, into = os.pipe()
    os.set_blocking(into, False)
    try:
        while True:
            os.write(into, b"x" * 4096)
    except BlockingIOError:
        os.set_blocking(into, True)
    os.dup2(into, onto)
"""


def ends(replica: Replica) -> int:
    """Its exit code."""
    replica.process.send(signal.SIGTERM)
    return replica.process.wait(timeout=ENDS)


def test_a_tenants_file_that_becomes_a_fifo_holds_up_nothing(spawn: Spawner, tmp_path: Path) -> None:
    file, fifo = tmp_path / "tenants.toml", tmp_path / "fifo"
    file.write_text(TENANTS)
    replica = Replica(spawn, {"ONCEBOX_TENANTS": str(file), "ONCEBOX_SECRET": "s"})
    os.mkfifo(fifo)
    fifo.rename(file)
    replica.process.wait_for_line("it is no regular file")
    assert replica.ask("GET", "/v1/exec-jobs", Authorization=f"Bearer {KEY}").status == 200, "what was read stays"
    replica.process.send(signal.SIGHUP)
    assert replica.ask("GET", "/healthz").status == 200
    assert ends(replica) == 0


def test_a_tenants_file_on_a_mount_that_hangs_holds_up_nothing(spawn: Spawner, tmp_path: Path) -> None:
    file = tmp_path / "tenants.toml"
    file.write_text(TENANTS)
    hangs = f"""
import os, threading, time
from service import tenants
tenants.ANSWERS = 1.0
stat = os.stat
def slow(path, *more, **options):
    if str(path) == {str(file)!r} and threading.current_thread() is not threading.main_thread():
        time.sleep(3600)
    return stat(path, *more, **options)
os.stat = slow
"""
    replica = Replica(spawn, {"ONCEBOX_TENANTS": str(file), "ONCEBOX_SECRET": "s"}, program=hangs + SERVE)
    replica.process.wait_for_line("does not answer")
    assert replica.ask("GET", "/v1/exec-jobs", Authorization=f"Bearer {KEY}").status == 200
    assert ends(replica) == 0


def test_a_log_that_nobody_reads_holds_up_nothing(spawn: Spawner) -> None:
    program = f"{FULL_PIPE}\nfull_pipe(2)\n{SERVE}"
    replica = Replica(spawn, SHORT, program=program)
    for _ in range(5):
        assert replica.ask("GET", "/v1/nowhere").status == 404, "with a line in the log"
    assert replica.sandbox(), "its local engine has the same standard error"
    assert ends(replica) == 0


def test_a_local_engine_whose_log_nobody_reads_goes_on(spawn: Spawner) -> None:
    program = f"{FULL_PIPE}\nfull_pipe(2)\nimport sys\nfrom service.local_engine import main\nsys.exit(main())"
    engine = spawn([sys.executable, "-P", "-c", program, "--isolation", "plain"], name="engine")
    url = msgspec.json.decode(engine.wait_for_line(r'^\{"url".*$')[0])["url"]
    assert urllib3.request("GET", f"{url}/health").status == 200, "it has warned that its sandboxes are not kept apart"
    engine.send(signal.SIGTERM)
    assert engine.wait(timeout=ENDS) == 0


def test_a_standard_output_that_nobody_reads_holds_up_nothing(spawn: Spawner) -> None:
    port = free_port()
    replica = Replica.__new__(Replica)
    command = [sys.executable, "-P", "-c", f"{FULL_PIPE}\nfull_pipe(1)\n{SERVE}", "1"]
    replica.process = spawn(command, name="replica", env={"ONCEBOX_BIND": f"127.0.0.1:{port}"})
    replica.process.wait_for_url(f"http://127.0.0.1:{port}/readyz")
    assert ends(replica) == 0


def test_a_lookup_of_names_that_hangs_does_not_keep_a_replica_from_ending(spawn: Spawner) -> None:
    hangs = """
import socket, time
known = socket.getaddrinfo
def lookup(host, *more, **options):
    if host == "engine.example":
        time.sleep(3600)
    return known(host, *more, **options)
socket.getaddrinfo = lookup
"""
    settings = {"ONCEBOX_ENGINE_URL": "http://engine.example:1", **SHORT}
    replica = Replica(spawn, settings, program=hangs + SERVE)
    assert replica.ask("POST", "/v1/sandboxes", {}).status in (502, 503)
    assert ends(replica) == 0


def test_an_event_loop_that_hangs_does_not_keep_a_replica_from_ending(spawn: Spawner) -> None:
    hangs = """
import time
from service.server import replica as serving
serving.CLOSING_SECONDS = serving.LAST_SECONDS = 1
from service.core.app import Core
async def readiness(self):
    time.sleep(3600)
Core.readiness = readiness
"""
    replica = Replica(spawn, {"ONCEBOX_SHUTDOWN_GRACE": "1"}, program=hangs + SERVE)
    with pytest.raises(OSError, match=r"timed out|reset|closed"):
        replica.raw(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n", timeout=2)
    began = time.monotonic()
    assert ends(replica) != 0
    assert time.monotonic() - began >= 3, "delay, grace and what comes after it"
