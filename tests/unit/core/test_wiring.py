"""The core is wired in one place, from top to bottom: nobody is handed the whole, and nothing is bound later."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.core import app

CORE = Path(app.__file__).parent
WIRING = ast.parse(Path(app.__file__).read_text(encoding="utf-8"))
MODULES = sorted(path for path in CORE.rglob("*.py") if path.name != "app.py")


def parameters(tree: ast.AST) -> Iterator[tuple[str, ast.arg]]:
    """What each constructor takes, with its class."""
    for kind in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for init in kind.body:
            if isinstance(init, ast.FunctionDef) and init.name == "__init__":
                yield from ((kind.name, each) for each in [*init.args.args[1:], *init.args.kwonlyargs])


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(CORE)))
def test_a_constructor_takes_parts_by_name_and_type(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for kind, taken in parameters(tree):
        assert taken.annotation is not None, f"{kind} takes {taken.arg} of no type"
        assert ast.unparse(taken.annotation) not in ("Core", "Any"), f"{kind} takes all there is"
    assert "service.core.app" not in {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}


def test_nothing_is_bound_after_it_was_made() -> None:
    """``self.watches.on_read = poller.on_read`` would hide a circle of objects."""
    for node in ast.walk(WIRING):
        for target in node.targets if isinstance(node, ast.Assign) else []:
            if isinstance(target, ast.Attribute):
                assert ast.unparse(target.value) == "self", ast.unparse(node)


def test_what_a_part_takes_was_made_before_it() -> None:
    """A name that is used before it is made would be an error at once; an attribute of ``self`` in a lambda not."""
    assert not [node for node in ast.walk(WIRING) if isinstance(node, ast.Lambda)]
