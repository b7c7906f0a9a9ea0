"""The small commands of `scripts`, run in a sandbox, and what they say as values and problems."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar
from weakref import WeakValueDictionary

from service import errors
from service.core.files import paths, scripts
from service.core.model import identity
from service.core.problems import refusal
from service.core.sandboxes import users
from service.core.sandboxes.users import User
from service.ports import engine as port
from service.ports.engine import Engine

T = TypeVar("T")

QUICK = 20.0
"""Seconds for a command that touches a few names."""
_MAYBE = "The sandbox did not answer: it may have been done, and the same request again is harmless."
AT_ONCE = 8
"""Small commands under way at once in one sandbox; see `core.fences`."""


class Said:
    """What a script printed."""

    def __init__(self, lines: Mapping[str, str]) -> None:
        self.lines = lines

    def __contains__(self, name: str) -> bool:
        return name in self.lines

    def __getitem__(self, name: str) -> str:
        return self.lines[name]

    def data(self, name: str) -> bytes:
        """A line of bytes. Raises ``EngineUnavailable`` where it is not whole."""
        try:
            plain = self.lines[name].removeprefix("=")
            return plain.encode() if self.lines[name].startswith("=") else bytes.fromhex(plain)
        except (KeyError, ValueError):
            raise garbled() from None

    @property
    def stat(self) -> paths.Stat:
        """The file that it is about. Raises ``EngineUnavailable`` where that was not said."""
        try:
            return paths.parse_stat(self.lines["stat"])
        except (KeyError, ValueError):
            raise garbled() from None

    @property
    def target(self) -> bytes | None:
        """Where it leads, if it is a link."""
        return self.data("target") if "target" in self.lines else None


class Shell:
    """Runs them. ``startup``: a daemon's startup variables (`core.fences`), which are sent blank; ``asleep``: whether a
    sandbox is paused; ``mounts``: mount points that a sandbox's daemon knows (`paths.from_mount`).
    """

    def __init__(
        self,
        engine: Engine,
        directory: str,
        *,
        startup: Callable[[str], Awaitable[Mapping[str, str]]],
        asleep: Callable[[str], Awaitable[bool]],
        mounts: Sequence[str],
    ) -> None:
        self._engine = engine
        self.directory = directory
        self._startup = startup
        self._asleep = asleep
        self._mounts = mounts
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def user(self, sandbox_id: str, text: str | None) -> User | None:
        """The user of a request. Raises ``InvalidRequest``."""
        return await self.asked(sandbox_id, users.lookup(self._engine, sandbox_id, text))

    async def run(
        self,
        sandbox_id: str,
        text: str,
        *,
        path: str | None = None,
        token: str | None = None,
        user: User | None = None,
        timeout: float = QUICK,
        changes: bool = False,
        **values: str,
    ) -> Said:
        """What ``text`` says of ``path`` (`paths.checked`). ``values``: its other variables, ``ONCEBOX_`` left out.

        Raises the problem that its reason is, or what a failed call means; ``changes``: it may have been done then.
        """
        work = self._run(sandbox_id, text, path, token or identity.random_token(), user, timeout, values)
        said = await self.asked(sandbox_id, work, changes=changes)
        reason = said.lines.get("end", "")
        if reason != "ok":
            raise problem_of(said, reason)
        return said

    async def asked(self, sandbox_id: str, work: Awaitable[T], *, changes: bool = False) -> T:
        """What a call to the sandbox comes to. Raises the problem for a failed one: 409 where the sandbox is paused."""
        try:
            return await work
        except port.DiskFull as error:
            raise errors.DiskFull(sandbox_id=sandbox_id) from error
        except port.EngineError as error:
            if await self._asleep(sandbox_id):
                raise paused(sandbox_id) from error
            if changes and isinstance(error, port.Unclear):
                raise errors.EngineUnavailable(_MAYBE, sandbox_id=sandbox_id, retry_after=1) from error
            raise refusal(error, sandbox_id=sandbox_id) from error

    async def _run(
        self,
        sandbox_id: str,
        text: str,
        path: str | None,
        token: str,
        user: User | None,
        timeout: float,
        values: Mapping[str, str],
    ) -> Said:
        blank = dict.fromkeys(await self._startup(sandbox_id), "")
        cwd, path = paths.from_mount(path or ".", self._mounts)
        env = {**blank, "ONCEBOX_TOKEN": token, **{f"ONCEBOX_{name}": value for name, value in values.items()}}
        turn = self._turns.setdefault(sandbox_id, asyncio.Semaphore(AT_ONCE))
        async with turn:
            try:
                return await self._once(sandbox_id, text, {**env, "ONCEBOX_PATH": path}, cwd, user, timeout)
            except port.Refused as error:  # the mount point is not there: nothing was run
                if cwd is None or error.code != "INVALID_REQUEST_BODY":
                    raise
            return await self._once(
                sandbox_id, text, {**env, "ONCEBOX_PATH": f"{cwd}/{path.removeprefix('./')}"}, None, user, timeout
            )

    async def _once(
        self, sandbox_id: str, text: str, env: Mapping[str, str], cwd: str | None, user: User | None, timeout: float
    ) -> Said:
        uid, gid = (None, None) if user is None else (user.uid, user.gid)
        awake = asyncio.ensure_future(
            self._engine.run_short(sandbox_id, self.text(text), timeout=timeout, env=env, cwd=cwd, uid=uid, gid=gid)
        )
        try:
            while True:
                done, _ = await asyncio.wait({awake}, timeout=2.0)
                if done:
                    return parsed(awake.result().stdout)
                if await self._asleep(sandbox_id):
                    raise port.NotReached("the sandbox is paused")
        finally:
            awake.cancel()

    def text(self, text: str) -> str:
        """``text`` behind ``HEAD``, with all that stands between two ``@``."""
        values = {
            "DIRECTORY": shlex.quote(self.directory.rstrip("/")),
            "UPLOAD": scripts.UPLOAD,
            "MOST": str(scripts.MOST_NAMES),
            "ROOM": str(scripts.ROOM),
            "STALEUPLOAD": str(scripts.STALE_UPLOAD),
            "STALEWAY": str(scripts.STALE_WAY),
        }
        return re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], scripts.HEAD + text)


def parsed(text: str) -> Said:
    """The lines ``name=value`` of what a script printed."""
    lines: dict[str, str] = {}
    for line in text.split("\n"):
        name, equals, value = line.partition("=")
        if equals:
            lines.setdefault(name, value)
    return Said(lines)


def garbled() -> errors.EngineUnavailable:
    """A script's words that are not what was asked for."""
    return errors.EngineUnavailable("The sandbox did not say what was asked for.", retry_after=2)


def paused(sandbox_id: str) -> errors.SandboxNotRunning:
    """409."""
    return errors.SandboxNotRunning(
        "The sandbox is paused: its files can't be had until it is resumed.", sandbox_id=sandbox_id, retry_after=5
    )


def problem_of(said: Said, reason: str) -> errors.OnceboxError:
    """What a reason of `scripts` means to a caller."""
    kind, detail = _PROBLEMS.get(reason, (errors.EngineUnavailable, "The sandbox did not answer as it should."))
    if reason == "tool":
        detail = (
            f"The sandbox's image has no `{said.lines.get('tool', '')[:40]}`, which this needs (coreutils or busybox)."
        )
    if reason == "other":
        what = bytes.fromhex(said.lines.get("said", "") or "").decode("utf-8", "replace")
        detail = "The sandbox could not do it: " + "".join(char if char.isprintable() else "?" for char in what)[-300:]
    return kind(detail)


_PROBLEMS: Mapping[str, tuple[type[errors.OnceboxError], str]] = {
    "missing": (errors.FileNotFound, "There is no such file, or a link leads nowhere."),
    "loop": (errors.FileNotFound, "The path leads through links that go in circles."),
    "toolong": (errors.InvalidRequest, "path: is too long, or one of its names is (255 bytes)"),
    "notdir": (errors.NotADirectory, "Something else than a directory is there, at the path or on the way to it."),
    "isdir": (errors.IsADirectory, "A directory is there."),
    "notfile": (errors.NotAFile, "A device, a pipe or a socket is there: it has no bytes to be had or replaced."),
    "kernel": (errors.NotAFile, "A file of /proc or /sys is made by the kernel as it is read: use a command."),
    "notempty": (errors.DirectoryNotEmpty, "The directory is not empty; `recursive=true` removes all that is in it."),
    "above": (errors.DirectoryNotEmpty, "The fences of Oncebox lie in this directory: it stays."),
    "fence": (errors.FilePermissionDenied, "The fences of Oncebox lie there: it is no place for files."),
    "denied": (
        errors.FilePermissionDenied,
        "The user may not do this with the file, or its owner and mode can't be kept.",
    ),
    "readonly": (errors.FilePermissionDenied, "The file system takes no writes."),
    "full": (errors.DiskFull, "The sandbox's disk is full; nothing is left of the file."),
    "busy": (errors.NotAFile, "The path is a mount point, or a program that runs: it can't be replaced or removed."),
    "locked": (errors.EngineUnavailable, "The same file is being replaced by others; try again."),
    "changed": (errors.PreconditionFailed, "Something else is there by now; nothing was changed."),
    "short": (errors.EngineUnavailable, "Not all bytes got there; nothing was changed."),
    "lost": (errors.EngineUnavailable, "What was sent has been removed meanwhile; nothing was changed."),
    "toomany": (errors.InvalidRequest, f"path: the directory has more than {scripts.MOST_NAMES} names"),
    "outside": (errors.InvalidRequest, "path: a link in the directory leads outside of it; nothing was unpacked"),
    "tool": (errors.EngineRejected, ""),
    "other": (errors.EngineRejected, ""),
}
"""By a script's reason."""
