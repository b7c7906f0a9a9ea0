"""Frameworks whose sandboxes are Oncebox's: each in an environment of its own, against a replica."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.acceptance.http_rig import Replica
from tests.support.doc_pages import DOCS, blocks, same
from tests.support.missing import missing
from tests.support.processes import ManagedProcess, Spawner

FILES = Path(__file__).parents[1] / "adapters"
"""What is run in those environments."""


class Adapter:
    """The environment that `tests/install-adapter NAME` made, and a replica that its programs find."""

    def __init__(self, name: str, spawn: Spawner, folder: Path) -> None:
        self.environment = Path(sys.prefix) / "adapters" / name
        if not (self.environment / "made-from.txt").exists():
            missing(f"no environment with {name}; `make test` makes one where there is a package index")
        self.replica = Replica(spawn)
        self.folder = folder
        self._spawn = spawn

    def start(
        self, program: str, *arguments: str | Path, name: str, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> ManagedProcess:
        """A program of the environment."""
        variables = {"ONCEBOX_URL": self.replica.url, "HOME": str(self.folder), "NO_COLOR": "1", **(env or {})}
        return self._spawn([self.environment / "bin" / program, *arguments], name=name, env=variables, stdin=stdin)

    def listed(self, kind: str) -> list[dict[str, Any]]:
        """All sandboxes, or all jobs."""
        items: list[dict[str, Any]] = self.replica.ask("GET", f"/v1/{kind}").json()["items"]
        return items

    def run_page(self, page: str, env: Mapping[str, str]) -> None:
        """Runs the programs of a page of the documentation, each with what it prints in the next `text` block."""
        shown = [block for block in blocks(DOCS / page) if block.language in ("python", "text")]
        assert shown
        for number, (program, prints) in enumerate(zip(shown[::2], shown[1::2], strict=True)):
            process = self.start("python", "-c", program.code, name=f"page-{number}", env=env)
            assert process.wait(timeout=120) == 0, process.stderr
            assert same(prints.code, process.stdout), f"{program.where}: {process.stdout}"
