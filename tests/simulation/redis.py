"""A Redis in the process that runs the real Lua: the commands that the store and its scripts use, and no others.

The contract suite of the store holds it to the same answers as a real server (`tests/contract`). A script is compiled
once a server, so it runs ten times as fast as in fakeredis. Nothing here waits: who asks gets the answer at once.
"""

from __future__ import annotations

import bisect
import hashlib
import importlib
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import lupa  # type: ignore[import-untyped]

with lupa.allow_lua_module_loading():
    _lua51 = importlib.import_module("lupa.lua51")

Arg = bytes
Reply = Any
"""``bytes``, ``int``, None, a list of such, ``Status`` or ``Refusal``."""


class Status(bytes):
    """A simple string, such as OK."""


class Refusal(Exception):
    """An error reply: its text."""


OK = Status(b"OK")

OOM = "OOM command not allowed when used memory > 'maxmemory'."
READONLY = "READONLY You can't write against a read only replica."
MISCONF = "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk."
NOSCRIPT = "NOSCRIPT No matching script. Please use EVAL."
WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"


class Sorted:
    """A sorted set."""

    def __init__(self, scores: dict[bytes, float] | None = None, rows: list[tuple[float, bytes]] | None = None) -> None:
        self.scores = scores or {}
        self.rows = rows or []

    def __bool__(self) -> bool:
        return bool(self.scores)

    def copy(self) -> Sorted:
        """Another one with the same members."""
        return Sorted(dict(self.scores), list(self.rows))

    def put(self, member: bytes, score: float) -> None:
        """Add a member, or move it."""
        self.remove(member)
        self.scores[member] = score
        bisect.insort(self.rows, (score, member))

    def remove(self, member: bytes) -> bool:
        """Take a member out; whether it was there."""
        score = self.scores.pop(member, None)
        if score is None:
            return False
        del self.rows[bisect.bisect_left(self.rows, (score, member))]
        return True


class Snapshot(NamedTuple):
    """All data at one moment."""

    values: dict[bytes, Any]
    expiries: dict[bytes, int]


class Command(NamedTuple):
    """``writes``: refused by a replica. ``grows``: refused by a full server."""

    run: Callable[..., Reply]
    writes: bool
    grows: bool


class Redis:
    """One server. ``clock``: its wall clock, Unix seconds. ``published``: is told of each message."""

    def __init__(self, clock: Callable[[], float], published: Callable[[bytes, bytes], int]) -> None:
        self._clock = clock
        self._published = published
        self._values: dict[bytes, Any] = {}
        self._expiries: dict[bytes, int] = {}
        self.full = False
        self.read_only = False
        self.unsaved = False
        """It can't write to its disk, and takes no writes."""
        self.acknowledging = 0
        """Replicas that have all that was written."""
        self._scripts: dict[bytes, Any] = {}
        self._dirty = False
        self._in_script = False
        self._lua = _lua51.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._set_arguments = self._lua.eval(b"function(keys, argv) KEYS = keys; ARGV = argv end")
        self._load = self._lua.eval(b"function(text) return loadstring(text) end")
        self._lua.eval(b"function(call) redis = { call = call } end")(self._from_lua)
        self._table = self._lua.table_from
        self._commands = {
            name.encode(): Command(getattr(self, "_" + name.lower()), writes, grows)
            for name, writes, grows in _COMMANDS
        }

    # -- its life

    def snapshot(self) -> Snapshot:
        """What stands now."""
        return Snapshot(_copied(self._values), dict(self._expiries))

    def restart(self, data: Snapshot | None) -> None:
        """Begin anew with this data, and without any script."""
        kept = data or Snapshot({}, {})
        self._values = _copied(kept.values)
        self._expiries = dict(kept.expiries)
        self._scripts.clear()

    def names(self) -> list[bytes]:
        """Every key that is there."""
        return [key for key in list(self._values) if self._live(key) is not None]

    def value(self, key: bytes) -> Any:
        """What stands under a key, in the form that it has here; None: nothing."""
        return self._live(key)

    def now(self) -> int:
        """Its time, Unix milliseconds."""
        return int(self._clock() * 1000)

    def execute(self, args: list[Arg]) -> Reply:
        """One command; errors are replies."""
        try:
            return self._execute(args[0].upper(), args[1:])
        except Refusal as refusal:
            return refusal

    def _execute(self, name: bytes, args: list[Arg]) -> Reply:
        command = self._commands.get(name)
        if command is None:
            raise Refusal(f"ERR unknown command '{name.decode(errors='replace')}'")
        if command.writes:
            self._check_write(command.grows)
        reply = command.run(*args)
        if command.writes and self._in_script:
            self._dirty = True
        return reply

    def _check_write(self, grows: bool) -> None:
        """A full server refuses the first write of a script or none."""
        if self.read_only:
            raise Refusal(READONLY)
        if self.unsaved and not self._dirty:
            raise Refusal(MISCONF)
        if grows and self.full and not self._dirty:
            raise Refusal(OOM)

    # -- scripts

    def _evalsha(self, sha: Arg, count: Arg, *rest: Arg) -> Reply:
        script = self._scripts.get(sha)
        if script is None:
            raise Refusal(NOSCRIPT)
        return self._run(script, int(count), rest)

    def _eval(self, text: Arg, count: Arg, *rest: Arg) -> Reply:
        sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
        script = self._scripts.get(sha)
        if script is None:
            loaded = self._load(text)
            if isinstance(loaded, tuple):
                raise Refusal(f"ERR Error compiling script: {loaded[1]!r}")
            script = self._scripts[sha] = loaded
        return self._run(script, int(count), rest)

    def _run(self, script: Any, count: int, rest: tuple[Arg, ...]) -> Reply:
        self._set_arguments(self._table(rest[:count]), self._table(rest[count:]))
        self._in_script, self._dirty = True, False
        try:
            return self._to_reply(script())
        except _lua51.LuaError as error:
            raise Refusal(f"ERR {error}") from error
        finally:
            self._in_script = self._dirty = False

    def _from_lua(self, name: bytes, *args: bytes | float) -> Any:
        given = [arg if isinstance(arg, bytes) else b"%.17g" % arg for arg in args]
        return self._to_lua(self._execute(name, given))

    def _to_lua(self, reply: Reply) -> Any:
        if reply is None:
            return False
        if type(reply) is list:
            return self._table([self._to_lua(each) for each in reply])
        if type(reply) is Status:
            return self._table({b"ok": bytes(reply)})
        return reply

    def _to_reply(self, found: Any) -> Reply:
        if found is None or found is False:
            return None
        if found is True:
            return 1
        if isinstance(found, float):
            return int(found)
        if isinstance(found, bytes | int):
            return found
        replies, place = [], 1
        while (each := found[place]) is not None:
            replies.append(self._to_reply(each))
            place += 1
        return replies

    # -- keys

    def _live(self, key: Arg) -> Any:
        until = self._expiries.get(key)
        if until is not None and until <= self.now():
            self._drop(key)
        return self._values.get(key)

    def _drop(self, key: Arg) -> bool:
        self._expiries.pop(key, None)
        return self._values.pop(key, None) is not None

    def _text(self, key: Arg) -> bytes | None:
        value = self._live(key)
        if value is not None and not isinstance(value, bytes):
            raise Refusal(WRONGTYPE)
        return value

    def _fields(self, key: Arg) -> dict[bytes, Any]:
        """A hash or a set; empty where there is none."""
        value = self._live(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise Refusal(WRONGTYPE)
        return value

    def _filled(self, key: Arg) -> dict[bytes, Any]:
        fields = self._fields(key)
        if key not in self._values:
            self._values[key] = fields
        return fields

    def _tidy(self, key: Arg) -> None:
        if not self._values.get(key, True):
            self._drop(key)

    def _del(self, *names: Arg) -> int:
        return sum(self._live(key) is not None and self._drop(key) for key in names)

    def _unlink(self, *names: Arg) -> int:
        return self._del(*names)

    def _exists(self, *names: Arg) -> int:
        return sum(self._live(key) is not None for key in names)

    def _pexpire(self, key: Arg, ms: Arg) -> int:
        if self._live(key) is None:
            return 0
        self._expire_in(key, int(float(ms)))
        return 1

    def _expire_in(self, key: Arg, ms: int) -> None:
        if ms <= 0:
            self._drop(key)
        else:
            self._expiries[key] = self.now() + ms

    def _persist(self, key: Arg) -> int:
        return int(self._live(key) is not None and self._expiries.pop(key, None) is not None)

    def _pttl(self, key: Arg) -> int:
        if self._live(key) is None:
            return -2
        until = self._expiries.get(key)
        return -1 if until is None else until - self.now()

    def _time(self) -> list[bytes]:
        micros = int(self._clock() * 1_000_000)
        return [b"%d" % (micros // 1_000_000), b"%d" % (micros % 1_000_000)]

    # -- strings

    def _get(self, key: Arg) -> bytes | None:
        return self._text(key)

    def _set(self, key: Arg, value: Arg, *options: Arg) -> Reply:
        words = [word.upper() for word in options]
        if b"NX" in words and self._live(key) is not None:
            return None
        self._values[key] = value
        self._expiries.pop(key, None)
        if b"PX" in words:
            ms = int(float(options[words.index(b"PX") + 1]))
            if ms <= 0:
                raise Refusal("ERR invalid expire time in 'set' command")
            self._expire_in(key, ms)
        return OK

    def _psetex(self, key: Arg, ms: Arg, value: Arg) -> Reply:
        return self._set(key, value, b"PX", ms)

    def _append(self, key: Arg, more: Arg) -> int:
        value = (self._text(key) or b"") + more
        self._values[key] = value
        return len(value)

    def _strlen(self, key: Arg) -> int:
        return len(self._text(key) or b"")

    def _getrange(self, key: Arg, start: Arg, end: Arg) -> bytes:
        value = self._text(key) or b""
        first, last = int(float(start)), int(float(end))
        first, last = (at if at >= 0 else max(0, len(value) + at) for at in (first, last))
        return value[first : last + 1]

    # -- hashes

    def _hget(self, key: Arg, field: Arg) -> bytes | None:
        return self._fields(key).get(field)

    def _hset(self, key: Arg, field: Arg, value: Arg) -> int:
        fields = self._filled(key)
        new = field not in fields
        fields[field] = value
        return int(new)

    def _hdel(self, key: Arg, *names: Arg) -> int:
        fields = self._fields(key)
        gone = sum(fields.pop(name, None) is not None for name in names)
        self._tidy(key)
        return gone

    def _hincrby(self, key: Arg, field: Arg, by: Arg) -> int:
        fields = self._filled(key)
        count = int(fields.get(field, b"0")) + int(float(by))
        fields[field] = b"%d" % count
        return count

    def _hkeys(self, key: Arg) -> list[bytes]:
        return list(self._fields(key))

    def _hgetall(self, key: Arg) -> list[bytes]:
        return [word for pair in self._fields(key).items() for word in pair]

    # -- sets: a dictionary, since their order is not to depend on anything

    def _sadd(self, key: Arg, *members: Arg) -> int:
        fields = self._filled(key)
        new = sum(member not in fields for member in members)
        fields.update(dict.fromkeys(members, b""))
        return new

    def _smembers(self, key: Arg) -> list[bytes]:
        return list(self._fields(key))

    def _srem(self, key: Arg, *members: Arg) -> int:
        return self._hdel(key, *members)

    # -- sorted sets

    def _sorted(self, key: Arg) -> Sorted:
        value = self._live(key)
        if value is None:
            return Sorted()
        if not isinstance(value, Sorted):
            raise Refusal(WRONGTYPE)
        return value

    def _zadd(self, key: Arg, *words: Arg) -> int:
        options = {word.upper() for word in words[:-2]}
        score, member = float(words[-2]), words[-1]
        found = self._sorted(key)
        before = found.scores.get(member)
        if before is None and b"XX" in options:
            return 0
        if before is not None and (b"NX" in options or (b"LT" in options and score >= before)):
            return 0
        found.put(member, score)
        self._values[key] = found
        return int(before is None)

    def _zcard(self, key: Arg) -> int:
        return len(self._sorted(key).rows)

    def _zscore(self, key: Arg, member: Arg) -> bytes | None:
        score = self._sorted(key).scores.get(member)
        return None if score is None else _number(score)

    def _between(self, key: Arg, least: Arg, most: Arg) -> list[tuple[float, bytes]]:
        rows = self._sorted(key).rows
        low, above = _bound(least)
        high, below = _bound(most)
        first = (bisect.bisect_right if above else bisect.bisect_left)(rows, low, key=_score)
        last = (bisect.bisect_left if below else bisect.bisect_right)(rows, high, key=_score)
        return rows[first:last]

    def _zcount(self, key: Arg, least: Arg, most: Arg) -> int:
        return len(self._between(key, least, most))

    def _zrangebyscore(self, key: Arg, least: Arg, most: Arg, *options: Arg) -> list[bytes]:
        return _shown(self._between(key, least, most), options)

    def _zrevrangebyscore(self, key: Arg, most: Arg, least: Arg, *options: Arg) -> list[bytes]:
        return _shown(self._between(key, least, most)[::-1], options)

    def _zrange(self, key: Arg, start: Arg, end: Arg, *options: Arg) -> list[bytes]:
        rows = self._sorted(key).rows
        first, last = (int(float(at)) for at in (start, end))
        first, last = (at if at >= 0 else max(0, len(rows) + at) for at in (first, last))
        return _shown(rows[first : last + 1], options)

    def _zrem(self, key: Arg, *members: Arg) -> int:
        found = self._sorted(key)
        gone = sum(found.remove(member) for member in members)
        self._tidy(key)
        return gone

    def _zremrangebyscore(self, key: Arg, least: Arg, most: Arg) -> int:
        return self._zrem(key, *(member for _, member in self._between(key, least, most)))

    # -- messages, and what the server says of itself

    def _publish(self, channel: Arg, message: Arg) -> int:
        return self._published(channel, message)

    def _ping(self) -> Status:
        return Status(b"PONG")

    def _client(self, *words: Arg) -> Status:
        return OK

    def _info(self, *sections: Arg) -> bytes:
        role = b"slave" if self.read_only else b"master"
        return b"redis_version:7.2.0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nrole:%b\r\n" % role

    def _wait(self, replicas: Arg, ms: Arg) -> int:
        return self.acknowledging


def _copied(values: dict[bytes, Any]) -> dict[bytes, Any]:
    return {key: value if isinstance(value, bytes) else value.copy() for key, value in values.items()}


def _score(row: tuple[float, bytes]) -> float:
    return row[0]


def _bound(text: Arg) -> tuple[float, bool]:
    """A bound of a range, and whether it is outside of it."""
    if text[:1] == b"(":
        return float(text[1:]), True
    return (math.inf if text == b"+inf" else -math.inf if text == b"-inf" else float(text)), False


def _shown(rows: Iterable[tuple[float, bytes]], options: tuple[Arg, ...]) -> list[bytes]:
    words = [word.upper() for word in options]
    some = list(rows)
    if b"LIMIT" in words:
        place = words.index(b"LIMIT")
        skip, most = int(float(options[place + 1])), int(float(options[place + 2]))
        some = some[skip : skip + most if most >= 0 else None]
    if b"WITHSCORES" not in words:
        return [member for _, member in some]
    return [word for score, member in some for word in (member, _number(score))]


def _number(score: float) -> bytes:
    return b"%.17g" % score


_READS = (
    "EVALSHA", "EVAL", "EXISTS", "PTTL", "TIME", "GET", "STRLEN", "GETRANGE", "HGET", "HKEYS", "HGETALL", "SMEMBERS",
    "ZCARD", "ZSCORE", "ZCOUNT", "ZRANGEBYSCORE", "ZREVRANGEBYSCORE", "ZRANGE", "PUBLISH", "PING", "CLIENT", "INFO",
    "WAIT",
)  # fmt: skip
_TAKES = ("DEL", "UNLINK", "PEXPIRE", "PERSIST", "HDEL", "SREM", "ZREM", "ZREMRANGEBYSCORE")
_GROWS = ("SET", "PSETEX", "APPEND", "HSET", "HINCRBY", "SADD", "ZADD")
_COMMANDS = (
    *((name, False, False) for name in _READS),
    *((name, True, False) for name in _TAKES),
    *((name, True, True) for name in _GROWS),
)
