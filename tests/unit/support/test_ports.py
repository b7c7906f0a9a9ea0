import socket
import sys
from pathlib import Path

from tests.support.ports import LOOPBACK, free_port
from tests.support.processes import Spawner

ROOT = Path(__file__).parents[3]
OTHERS = 3
PORTS = 150


def test_a_port_is_free_and_handed_out_once() -> None:
    ports = [free_port() for _ in range(100)]

    assert len(set(ports)) == 100
    for port in ports:
        with socket.create_server((LOOPBACK, port)):
            pass


def test_no_two_processes_are_given_the_same_port(spawn: Spawner) -> None:
    """All of them live until all have theirs, as the workers of a run do."""
    program = f"""
from tests.support.ports import free_port
print(*(free_port() for _ in range({PORTS})), flush=True)
__import__("time").sleep(600)
"""
    others = [spawn([sys.executable, "-c", program], cwd=ROOT) for _ in range(OTHERS)]
    ports = [free_port() for _ in range(PORTS)]
    for each in others:
        ports += map(int, each.wait_for_line(r"^[\d ]+$")[0].split())

    assert len(set(ports)) == len(ports) == (OTHERS + 1) * PORTS
