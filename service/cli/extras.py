"""What is only there after ``pip install 'oncebox[NAME]'``: the extras ``server`` and ``mcp``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from service.cli.problems import Trouble

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Around imports: say in a sentence what to install where they fail. ``purpose`` begins that sentence."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "service"):
            raise  # a bug of ours, not a missing package
        raise Trouble(f"{purpose} needs the package {missing}: pip install 'oncebox[{name}]'") from error
