"""The Lua scripts, one file each, and what they answer."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import msgspec

Args = tuple[bytes | str | int, ...]
"""A command as it is sent."""

_PRELUDE = "prelude"


class Script(msgspec.Struct, frozen=True):
    """A script: sent by its ``sha``, or, where the server does not know it, by its ``text``."""

    name: str
    text: bytes
    sha: str


class ScriptCall(msgspec.Struct, frozen=True):
    """A script with its keys, all of one hash slot where the server is a cluster, and its arguments."""

    script: Script
    keys: tuple[str, ...]
    args: Args = ()

    def by_sha(self) -> Args:
        """The command that runs a script which the server knows."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def by_text(self) -> Args:
        """The command that runs it in any case, and makes it known."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.args)


@cache
def scripts() -> Mapping[str, Script]:
    """Every script by its file's name, the prelude put before it."""
    folder = files(__package__).joinpath("lua")
    sources = {
        entry.name.removesuffix(".lua"): entry.read_bytes() for entry in folder.iterdir() if entry.name.endswith(".lua")
    }
    prelude = sources.pop(_PRELUDE)
    found = {}
    for name, source in sources.items():
        text = prelude + b"\n" + source
        found[name] = Script(name, text, hashlib.sha1(text, usedforsecurity=False).hexdigest())
    return found
