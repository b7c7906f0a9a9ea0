"""How a sandbox is kept apart from the others and from the machine: with bwrap, or not at all.

**bwrap**: each sandbox has its own pid, ipc and host name space, its own `/workspace`, `/tmp`, `/root`, `/home` and
other writable places (directories of the engine's), and sees the machine's other top-level directories
read-only. Directories of the home directory that `PATH` names (`~/.pyenv`, `~/.cargo`) are there read-only,
so that the developer's tools work. The network is the machine's. Its first process is bwrap's own init,
which starts the entrypoint and ends with it; commands join the name spaces.

**plain**: processes of the machine. Commands start in the sandbox's `workspace` directory, `HOME` is its `root`
directory, volumes are links in it; `/tmp` and every absolute path are the machine's.

Neither is a security boundary: this is an engine for development.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .spawning import MARK, Namespaces, Process, Spawner, StartFailed

PRIVATE = ("tmp", "workspace", "root", "home", "var/tmp", "run", "srv", "mnt", "media")
"""What is the sandbox's own, as a path below `/`; made empty, kept while its file system is."""

PROBE_SECONDS = 10.0
PROBE_OUTPUT = "/tmp/probe.output"  # noqa: S108 - inside a sandbox
ENTRYPOINT = ("/bin/sh", "-c", 'echo ready >&4; exec 3>&- 4>&-; exec "$@"', "entrypoint")
"""Reports on descriptor 4 that the file system stands, then becomes the entrypoint."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume as the sandbox sees it: `source` on the machine, `target` an absolute path inside."""

    source: Path
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """The directories of one sandbox on the machine."""

    directory: Path

    @property
    def files(self) -> Path:
        """Holds the sandbox's own `/tmp`, `/workspace` and so on."""
        return self.directory / "fs"

    def make(self) -> None:
        """Make what is missing of them."""
        for name in PRIVATE:
            (self.files / name).mkdir(parents=True, exist_ok=True)
        for name in ("tmp", "var/tmp"):
            (self.files / name).chmod(0o1777)

    def renew(self) -> None:
        """A new file system: everything but volumes is gone."""
        shutil.rmtree(self.files, ignore_errors=True)
        self.make()


def tool_directories(path: str, home: Path) -> list[Path]:
    """First components below `home` of what `PATH` names: `~/.pyenv` for `~/.pyenv/shims`."""
    found: list[Path] = []
    for entry in path.split(os.pathsep):
        try:
            below = Path(entry).relative_to(home)
        except ValueError:
            continue
        if below.parts and (tool := home / below.parts[0]) not in found and tool.is_dir():
            found.append(tool)
    return found


def bwrap_arguments(
    layout: Layout,
    mounts: Sequence[Mount],
    *,
    hostname: str,
    as_root: bool,
    hidden: Sequence[Path],
    tools: Sequence[Path],
    top: Sequence[os.DirEntry[str]],
) -> list[str]:
    """The command line up to the entrypoint. `hidden`: directories of the engine that no sandbox may see."""
    arguments = ["bwrap", "--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
    arguments += ["--hostname", hostname, "--info-fd", "3"]
    if not as_root:
        arguments += ["--unshare-user", "--uid", "0", "--gid", "0"]
    private = {name.split("/")[0] for name in PRIVATE if "/" not in name}
    for entry in top:
        if entry.name in private or entry.name in ("proc", "dev"):
            continue
        if entry.is_symlink():
            arguments += ["--symlink", os.readlink(entry.path), entry.path]
        elif entry.is_dir(follow_symlinks=False):
            arguments += ["--ro-bind-try", entry.path, entry.path]
    arguments += ["--proc", "/proc", "--dev", "/dev"]
    for name in PRIVATE:
        arguments += ["--bind", str(layout.files / name), "/" + name]
    for path in tools:
        arguments += ["--ro-bind-try", str(path), str(path)]
    for path in hidden:
        if path.parts[1] not in private or any(tool in path.parents for tool in tools):
            arguments += ["--tmpfs", str(path)]
    for mount in sorted(mounts, key=lambda mount: mount.target.count("/")):
        arguments += ["--ro-bind" if mount.read_only else "--bind", str(mount.source), mount.target]
    return [*arguments, "--"]


class Isolation:
    """Starts and ends sandboxes in one of the two ways."""

    def __init__(self, spawner: Spawner, hidden: Sequence[Path], *, bwrap: str | None) -> None:
        self._spawner = spawner
        self._bwrap = bwrap
        self._hidden = list(hidden)
        self._as_root = os.geteuid() == 0
        home = Path(os.path.expanduser("~"))
        # Names are often resolved by a file below /run, to which /etc/resolv.conf is a link.
        self._tools = [*tool_directories(os.environ.get("PATH", ""), home), Path(os.path.realpath("/etc/resolv.conf"))]
        with os.scandir("/") as entries:
            self._top = sorted(entries, key=lambda entry: entry.name)

    @property
    def name(self) -> str:
        """`bwrap` or `plain`, as printed at the start."""
        return "bwrap" if self._bwrap else "plain"

    @property
    def private(self) -> bool:
        """Whether paths inside are the sandbox's own."""
        return self._bwrap is not None

    def environment(self, layout: Layout, sandbox: str, extra: Mapping[str, str]) -> dict[str, str]:
        """What every process of a sandbox starts with: an image's few variables, then the caller's."""
        inherited = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
        env = {"HOME": "/root", "HOSTNAME": sandbox[:12], **inherited}
        env.setdefault("PATH", os.defpath)
        if not self.private:
            env["HOME"] = str(layout.files / "root")
        env.update(extra)
        if not self.private:
            env[MARK] = f"{self._spawner.engine}/{sandbox}"
        return env

    async def launch(
        self,
        layout: Layout,
        mounts: Sequence[Mount],
        sandbox: str,
        entrypoint: Sequence[str],
        env: Mapping[str, str],
    ) -> tuple[Process, Namespaces]:
        """Start a sandbox's first process. Raises `StartFailed`; a missing entrypoint ends it with 127."""
        log = str(layout.directory / "entrypoint.log")
        if self._bwrap is None:
            link_mounts(layout, mounts)
            argv = ["/bin/sh", "-c", 'exec "$@"', "entrypoint", *entrypoint]
            workspace = str((layout.files / "workspace").resolve())
            process = await self._spawner.spawn(
                argv[0], argv, env, cwd=workspace, stdout=log, stderr=log, kill_rest=True
            )
            return process, Namespaces()
        argv = bwrap_arguments(
            layout,
            mounts,
            hostname=sandbox[:12],
            as_root=self._as_root,
            hidden=self._hidden,
            tools=self._tools,
            top=self._top,
        )
        argv[-1:-1] = ["--chdir", "/workspace"]
        process = await self._spawner.spawn(
            self._bwrap,
            [*argv, *ENTRYPOINT, *entrypoint],
            env,
            stdout=log,
            stderr=log,
            kill_rest=True,
            launch=True,
        )
        return process, Namespaces(process.init, user=not self._as_root)

    async def end(self, process: Process, namespaces: Namespaces, sandbox: str) -> None:
        """Kill every process of a sandbox; returns when its first one has been reaped."""
        if namespaces.init:
            self._spawner.forget(namespaces)
        self._spawner.kill(process, 9)
        if not namespaces.init:
            await self._spawner.signal_all(namespaces, sandbox, 9)
        await asyncio.wait([process.ended], timeout=PROBE_SECONDS)


def link_mounts(layout: Layout, mounts: Sequence[Mount]) -> None:
    """Plain mode: volumes are links below the sandbox's directory, in place of what stood there."""
    for mount in mounts:
        link = layout.files / mount.target.lstrip("/")
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink():
            link.unlink()
        elif link.is_dir():
            shutil.rmtree(link)
        link.symlink_to(mount.source)


async def choose(spawner: Spawner, root: Path, hidden: Sequence[Path], wanted: str) -> tuple[Isolation, str]:
    """The isolation for `auto`, `bwrap` or `plain`, found by running a sandbox; and why it is not bwrap.

    Raises `RuntimeError` when `bwrap` is demanded and does not work.
    """
    plain = Isolation(spawner, hidden, bwrap=None)
    if wanted == "plain":
        return plain, "asked for"
    path = shutil.which("bwrap")
    if path is None:
        reason = "bwrap is not installed"
    else:
        isolation = Isolation(spawner, hidden, bwrap=path)
        reason = await probe(isolation, spawner, root)
        if not reason:
            return isolation, ""
    if wanted == "bwrap":
        raise RuntimeError(f"isolation by bwrap was asked for, but {reason}")
    return plain, reason


async def probe(isolation: Isolation, spawner: Spawner, root: Path) -> str:
    """Run a sandbox and a command in it; what went wrong, or an empty text."""
    layout = Layout(root / "probe")
    layout.make()
    env = isolation.environment(layout, "probe", {})
    try:
        process, namespaces = await asyncio.wait_for(
            isolation.launch(layout, [], "probe", ["sleep", "60"], env), PROBE_SECONDS
        )
        try:
            command = await spawner.spawn(
                "/bin/sh",
                ["sh", "-c", 'echo "$(readlink /proc/$$/fd/1) $$"'],
                env,
                cwd="/workspace",
                stdout=PROBE_OUTPUT,
                stderr=PROBE_OUTPUT,
                namespaces=namespaces,
            )
            await asyncio.wait_for(command.ended, PROBE_SECONDS)
            said = (layout.directory / "fs" / PROBE_OUTPUT[1:]).read_text()
            return "" if said.startswith(PROBE_OUTPUT + " ") else f"a command in it said {said!r}"
        finally:
            await isolation.end(process, namespaces, "probe")
    except (StartFailed, OSError, TimeoutError) as error:
        log = layout.directory / "entrypoint.log"
        said = log.read_text().strip() if log.exists() else ""
        return f"it does not work here: {said or error}"
    finally:
        shutil.rmtree(layout.directory, ignore_errors=True)
