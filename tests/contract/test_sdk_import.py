"""How the SDK is imported: beside anything, with little."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import oncebox
import service.client

ROOT = Path(oncebox.__file__).parent


def run(script: str, cwd: Path) -> str:
    """What ``script`` prints, started from a file in ``cwd`` as a user's program is."""
    (cwd / "program.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-W", "error", "program.py"],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PYTHONPATH": f":{ROOT}"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


USES = """
import asyncio, pickle
{first}
from oncebox import AsyncClient, Client, JobNotFound, OnceboxError
import oncebox
{then}
try:
    Client("http://127.0.0.1:1", deadline=0).sandbox("x").refresh()
except OnceboxError as error:
    assert type(error) is oncebox.ConnectionFailed, error
    assert type(pickle.loads(pickle.dumps(error))) is oncebox.ConnectionFailed
async def main():
    async with AsyncClient("http://127.0.0.1:1", deadline=0) as client:
        try:
            await client.sandbox("x").refresh()
        except oncebox.ConnectionFailed:
            print(service.WHO, service.tasks.WHO)
asyncio.run(main())
"""


@pytest.mark.parametrize("mine_first", [True, False])
def test_it_works_beside_a_package_called_service(tmp_path: Path, mine_first: bool) -> None:
    (tmp_path / "service").mkdir()
    (tmp_path / "service" / "__init__.py").write_text("WHO = 'mine'\n")
    (tmp_path / "service" / "tasks.py").write_text("WHO = 'too'\n")
    mine = "import service, service.tasks"

    script = USES.format(first=mine if mine_first else "", then="" if mine_first else mine)

    assert run(script, tmp_path) == "mine too"


def test_it_works_beside_a_module_called_service(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text("class tasks: WHO = 'too'\nWHO = 'mine'\n")

    assert run(USES.format(first="", then="import service"), tmp_path) == "mine too"


def test_errors_travel_to_a_process_that_has_not_imported_it_yet(tmp_path: Path) -> None:
    (tmp_path / "service.py").write_text("")
    dumped = run(
        "import oncebox, pickle; print(pickle.dumps(oncebox.JobNotFound('x', command_id='c')).hex())", tmp_path
    )

    script = f"import pickle; error = pickle.loads(bytes.fromhex({dumped!r})); print(error.code, error.command_id)"

    assert run(script, tmp_path) == "JOB_NOT_FOUND c"


def test_both_names_are_the_same_client() -> None:
    assert oncebox.Client is service.client.Client
    assert oncebox.__all__ == service.client.__all__


ALONE = """
import sys
from importlib.abc import MetaPathFinder
ALLOWED = {"msgspec", "aiohttp", "urllib3", "oncebox", "service"}
# What these three need themselves.
ALLOWED |= {"aiohappyeyeballs", "aiosignal", "attr", "attrs", "frozenlist", "multidict", "propcache", "yarl", "idna",
    "typing_extensions"}
class Only(MetaPathFinder):
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in sys.stdlib_module_names or top in ALLOWED:
            return self.finder.find_spec(name, path, target)
sys.meta_path = [Only(finder) for finder in sys.meta_path]
import asyncio
from oncebox import AsyncClient, Client, ConnectionFailed
try:
    Client("http://127.0.0.1:1", deadline=0).sandbox("x").refresh()
except ConnectionFailed:
    pass
async def main():
    async with AsyncClient("http://127.0.0.1:1", deadline=0) as client:
        try:
            await client.sandbox("x").refresh()
        except ConnectionFailed:
            pass
asyncio.run(main())
ours = {name for name in sys.modules if name.partition(".")[0] == "service"}
print(sorted(name for name in ours if not name.startswith("service.client")))
"""


def test_it_needs_three_libraries_and_nothing_of_the_server(tmp_path: Path) -> None:
    assert run(ALONE, tmp_path) == "['service', 'service.errors', 'service.messages']"


def test_it_says_that_it_is_typed() -> None:
    assert (Path(service.client.__file__).parent.parent / "py.typed").exists()
