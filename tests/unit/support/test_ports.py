import socket

from tests.support.ports import LOOPBACK, free_port


def test_a_port_is_free_and_handed_out_once() -> None:
    ports = [free_port() for _ in range(100)]

    assert len(set(ports)) == 100
    for port in ports:
        with socket.create_server((LOOPBACK, port)):
            pass
