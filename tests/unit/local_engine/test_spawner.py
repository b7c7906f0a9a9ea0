"""The local engine's helper process, in parts that can be run here."""

import os
import select
import socket
from typing import Any

from service.local_engine.spawner import Spawner


class Scripted:
    """An epoll whose answers are given, and which unregisters only what was registered."""

    def __init__(self, *answers: list[tuple[int, int]]) -> None:
        self.answers = list(answers)
        self.real = select.epoll()

    def poll(self) -> list[tuple[int, int]]:
        return self.answers.pop(0)

    def register(self, descriptor: int, events: int) -> None:
        self.real.register(descriptor, events)

    def unregister(self, descriptor: int) -> None:
        self.real.unregister(descriptor)


def test_an_event_about_a_pipe_that_is_gone_is_no_event_about_the_one_that_has_its_number_now() -> None:
    """A sandbox that was ready before its start had been reported once ended the engine, and all sandboxes with it."""
    read, write = os.pipe2(os.O_NONBLOCK)
    os.write(write, b'{"child-pid": %d}\nready\n' % os.getpid())
    ours, theirs = socket.socketpair()
    hang_up = [(theirs.fileno(), select.EPOLLHUP)]
    spawner: Any = Spawner.__new__(Spawner)
    spawner.connection, spawner.wakeup, spawner.blocked = theirs, -1, False
    spawner.reports, spawner.namespaces = {}, {}
    spawner.incoming, spawner.outgoing = bytearray(), bytearray()
    launch = {"tag": 7, "info": read, "pid": 4711}
    spawner.infos = {read: (launch, write, bytearray())}

    spawner.poll = Scripted([(read, select.EPOLLIN)], hang_up)
    spawner.run()
    assert not spawner.outgoing, "nothing is said of a start that has not been reported"

    spawner.started(launch, {"pid": 4711})
    spawner.poll.answers = [[(read, select.EPOLLIN)], hang_up]
    spawner.run()
    assert b'"init": %d' % os.getpid() in ours.recv(4096)
    for descriptor in spawner.namespaces.values():
        os.close(descriptor)
    for each in (ours, theirs, spawner.poll.real):
        each.close()
