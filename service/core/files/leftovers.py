"""What uploads and reads leave behind when their replica dies: removed by whoever sweeps."""

from __future__ import annotations

from service.core.files import scripts
from service.core.files.shell import Shell

SLOW = 50.0
"""Seconds for one sandbox."""


class Leftovers:
    """Removes them. ``shell`` runs the script."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def remove(self, sandbox_id: str) -> bool:
        """Remove what has ended; whether something is left that is too young to tell. Raises ``OnceboxError``."""
        said = await self._shell.run(sandbox_id, scripts.SWEEP, timeout=SLOW)
        return said.lines.get("left", "0") != "0"
