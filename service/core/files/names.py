"""What stands under a path: shown, made as a directory, removed."""

from __future__ import annotations

from service import errors
from service.core.files import paths, scripts
from service.core.files.shell import Said, Shell
from service.messages import File

REMOVAL = 50.0
"""Seconds for removing a directory with all that is in it: less than balancers wait for an answer."""


class Names:
    """Names in sandboxes. ``shell`` runs the scripts, and says what they raise."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def info(self, sandbox_id: str, path: str, *, user: str | None) -> File:
        """What stands there; a link itself."""
        path = paths.checked(path)
        who = await self._shell.user(sandbox_id, user)
        return _file(path, await self._shell.run(sandbox_id, scripts.INFO, path=path, user=who))

    async def make_directory(
        self, sandbox_id: str, path: str, *, mode: str | None, user: str | None
    ) -> tuple[File, bool]:
        """The directory, and whether it was made; its parents are, too. One that is there stays as it is."""
        path, mode = paths.checked(path), paths.octal("mode", mode) or "0755"
        who = await self._shell.user(sandbox_id, user)
        said = await self._shell.run(sandbox_id, scripts.MKDIR, path=path, user=who, changes=True, MODE=mode)
        return _file(path, said), said["made"] == "1"

    async def remove(self, sandbox_id: str, path: str, *, recursive: bool, user: str | None) -> None:
        """Remove a file, a link, or a directory; not there: fine. ``recursive``: with all that is in it, but for
        uploads that are under way there.
        """
        path = paths.checked(path)
        who = await self._shell.user(sandbox_id, user)
        try:
            await self._shell.run(
                sandbox_id,
                scripts.REMOVE,
                path=path,
                user=who,
                timeout=REMOVAL,
                changes=True,
                RECURSIVE="1" if recursive else "",
            )
        except errors.FileNotFound:
            pass


def _file(path: str, said: Said) -> File:
    return paths.file_of(paths.shown(path, said.data("base"), said.data("where")), said.stat, said.target)
