"""Keys for a series of commands, each run once however often the program that asks for them is started anew."""

from __future__ import annotations

import hashlib

import msgspec


class Series:
    """Makes each command's key from all commands up to it, in their order.

    A program that is run again is so given the results of what it asks for, as long as that is what it asked for
    before; from the first command that differs on, all run.
    """

    def __init__(self, key: str | None, *start: object) -> None:
        self._key = key
        self._so_far = digest(start)

    def next(self, *command: object) -> str | None:
        """The next command's key; None where there is none for the whole."""
        self._so_far = digest((self._so_far, *command))
        return self._key and f"{self._key}-{self._so_far}"


def digest(value: object) -> str:
    """A short name for what JSON can hold: 32 hexadecimal digits."""
    return hashlib.sha256(msgspec.json.encode(value)).hexdigest()[:32]
