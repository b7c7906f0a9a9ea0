"""How a sandbox is described to bwrap, and what of the home directory it gets."""

import os
from pathlib import Path

from service.local_engine.isolation import PRIVATE, Layout, Mount, bwrap_arguments, link_mounts, tool_directories


def arguments(layout: Layout, mounts: list[Mount], hidden: list[Path], tools: tuple[Path, ...] = ()) -> str:
    with os.scandir("/") as entries:
        top = list(entries)
    words = bwrap_arguments(layout, mounts, hostname="h", as_root=False, hidden=hidden, tools=tools, top=top)
    return " ".join(words)


def test_volumes_come_last_and_outer_ones_first(tmp_path: Path) -> None:
    mounts = [Mount(tmp_path / "b", "/data/inner", read_only=True), Mount(tmp_path / "a", "/data")]
    line = arguments(Layout(tmp_path), mounts, [])
    assert line.endswith(f"--bind {tmp_path}/a /data --ro-bind {tmp_path}/b /data/inner --")
    assert "--die-with-parent" in line
    assert "--unshare-pid" in line


def test_what_a_sandbox_owns_is_never_the_machines(tmp_path: Path) -> None:
    line = arguments(Layout(tmp_path), [], [])
    for name in PRIVATE:
        assert f"--bind {tmp_path}/fs/{name} /{name}" in line
    for name in ("tmp", "root", "home", "workspace"):
        assert f"--ro-bind-try /{name} " not in line


def test_the_engines_own_directories_are_hidden_where_they_would_show(tmp_path: Path) -> None:
    line = arguments(Layout(tmp_path), [], [Path("/var/lib/engine"), Path("/tmp/engine")])
    assert "--tmpfs /var/lib/engine" in line
    assert "--tmpfs /tmp/engine" not in line  # /tmp is the sandbox's own already
    tools = (Path("/home/me/.local"),)
    line = arguments(Layout(tmp_path), [], [Path("/home/me/.local/share/engine"), Path("/home/me/engine")], tools)
    assert "--tmpfs /home/me/.local/share/engine" in line
    assert "--tmpfs /home/me/engine" not in line


def test_tools_of_the_home_directory_are_those_that_path_names(tmp_path: Path) -> None:
    for name in (".pyenv", ".cargo", "secrets"):
        (tmp_path / name).mkdir()
    path = (
        f"{tmp_path}/.pyenv/shims:/usr/bin:{tmp_path}/.cargo/bin:{tmp_path}/.pyenv/bin:{tmp_path}/gone/bin:{tmp_path}"
    )
    assert tool_directories(path, tmp_path) == [tmp_path / ".pyenv", tmp_path / ".cargo"]


def test_in_plain_mode_volumes_are_links(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "sandbox")
    layout.make()
    source = tmp_path / "source"
    source.mkdir()
    for _ in range(2):  # a restart links again
        link_mounts(layout, [Mount(source, "/workspace"), Mount(source, "/root/.x")])
    assert (layout.files / "workspace").readlink() == source
    assert (layout.files / "root/.x").readlink() == source
    layout.renew()
    assert source.is_dir()
