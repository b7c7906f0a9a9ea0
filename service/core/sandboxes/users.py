"""Whose rights a command or a file operation has: ``user`` of a request, as numbers of its sandbox.

``name``, ``uid`` or ``uid:gid``. Names are the sandbox's own: they are looked up in its ``/etc/passwd`` each time,
since a command may have made the user a moment ago. Numbers need not be there.
"""

from __future__ import annotations

import re

import msgspec

from service.errors import InvalidRequest
from service.ports.engine import Engine, FileMissing

PASSWD = "/etc/passwd"  # noqa: S105 - a path in the sandbox
PASSWD_SIZE = 1024 * 1024
"""Bytes of it that are read."""
MOST = 2**32 - 2
"""Of a number: the one above is the kernel's word for "leave it as it is"."""

_NUMBERS = re.compile(r"([0-9]{1,10})(?::([0-9]{1,10}))?")
_NAME = re.compile(r"(?!-)[^\s:/\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,256}")


class User(msgspec.Struct, frozen=True):
    """``gid`` None: the engine's choice, the user's own group where the sandbox knows the user."""

    uid: int
    gid: int | None = None


def parse(text: str) -> User | str:
    """The numbers, or the name that is to be looked up. Raises ``InvalidRequest``."""
    numbers = _NUMBERS.fullmatch(text)
    if numbers is not None:
        user = User(int(numbers[1]), None if numbers[2] is None else int(numbers[2]))
        if max(user.uid, user.gid or 0) > MOST:
            raise InvalidRequest.of("user", f"has a number above {MOST}")
        return user
    if not _NAME.fullmatch(text):
        raise InvalidRequest.of("user", "must be a name, a uid, or uid:gid")
    return text


def find(passwd: bytes, name: str) -> User | None:
    """The first line of ``passwd`` with this name (passwd(5)); None where there is none that can be read."""
    for line in passwd.split(b"\n"):
        fields = line.split(b":")
        if len(fields) >= 4 and fields[0] == name.encode():
            uid, gid = (int(field) if re.fullmatch(rb"[0-9]{1,10}", field) else -1 for field in fields[2:4])
            return User(uid, gid) if 0 <= uid <= MOST and 0 <= gid <= MOST else None
    return None


async def lookup(engine: Engine, sandbox_id: str, text: str | None) -> User | None:
    """The user of a request; None: the daemon's own. One read of the sandbox where ``text`` is a name, else none.

    Raises ``InvalidRequest`` where the sandbox has no such user, ``EngineError``.
    """
    wanted = None if text is None else parse(text)
    if not isinstance(wanted, str):
        return wanted
    return _known(wanted, await _passwd(engine, sandbox_id))


async def account(engine: Engine, sandbox_id: str, text: str) -> tuple[User, str]:
    """The user of a command, and its ``HOME``: one read of the sandbox. Raises as ``lookup`` does."""
    passwd = await _passwd(engine, sandbox_id)
    wanted = parse(text)
    user = _known(wanted, passwd) if isinstance(wanted, str) else wanted
    return user, home(passwd, wanted if isinstance(wanted, str) else user.uid)


def home(passwd: bytes, user: str | int) -> str:
    """What ``docker exec`` makes ``HOME``: the sixth field of the first line with this name or number, else ``/``."""
    place, wanted = (0, user) if isinstance(user, str) else (2, str(user))
    for line in passwd.split(b"\n"):
        fields = line.split(b":")
        if len(fields) >= 6 and fields[place] == wanted.encode():
            return fields[5].decode("utf-8", "replace") or "/"
    return "/"


def _known(name: str, passwd: bytes) -> User:
    found = find(passwd, name)
    if found is None:
        raise InvalidRequest.of("user", "is no user of this sandbox (its /etc/passwd has no such name)")
    return found


async def _passwd(engine: Engine, sandbox_id: str) -> bytes:
    try:
        return (await engine.read_file(sandbox_id, PASSWD, 0, PASSWD_SIZE)).data
    except FileMissing:
        return b""
