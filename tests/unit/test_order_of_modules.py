"""Which module may import which: one order of packages, no circles, and late imports only where they are worth it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

SERVICE = Path(__file__).parents[2] / "service"

LAYERS: list[set[str]] = [
    {"service.errors", "service.context", "service.blocking", "service.log_writer"},
    {"service.messages"},
    {"service.settings", "service.audit"},
    {"service.core.model"},
    {"service.ports", "service.tenants"},
    {"service.store", "service.engine"},
    {"service.core.records", "service.core.problems", "service.core.telemetry"},
    {"service.core.limits"},
    {"service.core.claims"},
    {"service.core.fence"},
    {"service.core.sandboxes"},
    {"service.core.jobs"},
    {"service.core.files"},
    {"service.core"},
    {"service.api"},
    {"service.observability"},
    {"service.app"},
    {"service.server"},
    {"service.cli"},
]
"""A module imports from the layers above its own line, never from those below it or beside it."""
ALONE = {
    "service.client": {"service.errors", "service.messages"},
    "service.local_engine": {"service.log_writer"},
    "service.adapters": {"service.client"},
}
"""Packages that stand alone, and all that they import. Of the others only the command line imports them."""

START_UP = "the command line answers --help and completion without it"
OPTIONAL = "an extra that need not be installed"
LATE = {
    ("service.cli", "service.cli.app"): "Ctrl-C during the imports ends the command without a traceback",
    ("service.cli.checks.probes", "service.store"): OPTIONAL,
    ("service.cli.checks.probes", "service.engine"): OPTIONAL,
    ("service.cli.commands.doctor", "service.cli.checks.probes"): START_UP,
    ("service.cli.commands.mcp", "service.adapters.mcp.server"): OPTIONAL,
    ("service.cli.commands.run", "service.cli.foreground"): START_UP,
    ("service.cli.commands.servers", "service.server.command"): OPTIONAL,
    ("service.cli.commands.servers", "service.local_engine"): OPTIONAL,
    ("service.cli.output.tables", "rich"): START_UP,
    ("service.cli.stack", "service.engine.local"): OPTIONAL,
    ("service.cli.stack", "service.server.embedded"): OPTIONAL,
    ("service.cli.target", "service.cli.stack"): START_UP,
    ("service.cli.target", "service.client"): START_UP,
    ("service.client.driver", "service.client.transport_async"): "who uses one client does not load the other's HTTP",
    ("service.client.driver", "service.client.transport_sync"): "who uses one client does not load the other's HTTP",
    ("service.client.transport_async", "aiohttp"): "half a second, and a client is often made before it is used",
    ("service.client.transport_async", "yarl"): "comes with aiohttp",
    ("service.local_engine", "service.local_engine.engine"): "its parser of arguments does without the server",
    ("service.local_engine.execd", "grp"): "only on Unix",
    ("service.local_engine.execd", "pwd"): "only on Unix",
    ("service.local_engine.spawner", "shutil"): "the helper process stays small",
    ("service.observability.tracing", "opentelemetry"): OPTIONAL,
    ("service.store.urls", "fakeredis"): "for memory:// alone",
}
"""Imports within functions, and why they are there."""


class Import(NamedTuple):
    """``late``: within a function. ``typed``: for types alone."""

    by: str
    of: str
    late: bool = False
    typed: bool = False


def modules() -> dict[str, Path]:
    """Every module of the service by its name."""
    found = {}
    for path in SERVICE.rglob("*.py"):
        name = ".".join(path.relative_to(SERVICE.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imports_of(name: str, text: str) -> Iterator[Import]:
    """All of a module, those for types too."""
    tree = ast.parse(text)
    package = name if MODULES[name].name == "__init__.py" else name.rpartition(".")[0]
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    late = {id(node) for function in functions for node in ast.walk(function)}
    guards = [node for node in ast.walk(tree) if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    typed = {id(node) for guard in guards for node in ast.walk(guard)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            inner = [f"{module}.{alias.name}" for alias in node.names]
            targets = [one if one in MODULES else module for one in inner]
        else:
            continue
        yield from (Import(name, target, id(node) in late, id(node) in typed) for target in targets)


IMPORTS = [found for name, path in MODULES.items() for found in imports_of(name, path.read_text())]
OWN = [found for found in IMPORTS if found.of in MODULES and found.of not in (found.by, "service")]
"""Those of our own modules; what stands in ``service`` itself is a version."""


def within(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(prefix + ".")


def room_of(name: str, rooms: set[str]) -> str | None:
    """The narrowest of ``rooms`` that has the module."""
    return max((room for room in rooms if within(name, room)), key=len, default=None)


def forbidden(imports: list[Import]) -> list[Import]:
    """Those that the order of packages does not have."""
    rank = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
    wrong = []
    for found in imports:
        by, of = (room_of(name, {*rank, *ALONE}) for name in (found.by, found.of))
        if by == of:
            continue
        if by in ALONE:
            wrong += [found] if found.of not in ALONE[by] else []
        elif of in ALONE:
            wrong += [found] if by != "service.cli" else []
        elif by is None or of is None or rank[of] >= rank[by]:
            wrong.append(found)
    return wrong


def circle(imports: list[Import]) -> list[str]:
    """The modules of a circle, if there is one; late imports count, and those for types alone don't."""
    graph: dict[str, set[str]] = {}
    for found in imports:
        if not found.typed:
            graph.setdefault(found.by, set()).add(found.of)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_every_module_has_its_place_in_the_order() -> None:
    rooms = {*set().union(*LAYERS), *ALONE}
    assert [name for name in MODULES if name != "service" and room_of(name, rooms) is None] == []


def test_packages_import_in_one_direction() -> None:
    assert forbidden(OWN) == []


def test_no_circle_of_modules() -> None:
    assert circle(OWN) == []


def test_an_import_within_a_function_has_a_reason() -> None:
    late = [found for found in IMPORTS if found.late]
    known = dict.fromkeys(LATE, False)
    for found in late:
        reason = next(((by, of) for by, of in LATE if by == found.by and within(found.of, of)), None)
        assert reason is not None, found
        known[reason] = True
    assert [each for each, used in known.items() if not used] == [], "they are gone: so may their reasons be"


@pytest.mark.parametrize(
    "found",
    [
        Import("service.core.app", "service.api.exchange"),
        Import("service.ports.store", "service.store.redis_client"),
        Import("service.api.routes", "service.server.logs", late=True),
        Import("service.server.replica", "service.cli.app", late=True),
        Import("service.client.calls", "service.settings"),
        Import("service.local_engine.engine", "service.errors"),
        Import("service.api.routes", "service.client"),
        Import("service.store.keys", "service.engine.wire"),
    ],
)
def test_an_import_that_runs_back_is_found(found: Import) -> None:
    assert forbidden([found]) == [found]


def test_a_circle_is_found_also_through_a_late_import() -> None:
    text = "def f():\n    from . import replica\n"
    back = list(imports_of("service.server.listening", text))
    assert back == [Import("service.server.listening", "service.server.replica", late=True)]
    assert circle([*OWN, *back])
