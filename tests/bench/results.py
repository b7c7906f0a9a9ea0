"""The figures in `docs/bench.json`, a section for each benchmark, and the page that shows them."""

import json
import time
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = DOCS / "bench.json"


def load() -> dict[str, Any]:
    """All sections."""
    try:
        figures: dict[str, Any] = json.loads(FIGURES.read_text())
    except FileNotFoundError:
        return {}
    return figures


def record(section: str, figures: dict[str, Any]) -> None:
    """Write one section, and the page anew."""
    from tests.bench.page import write

    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    everything = {**load(), section: {"measured": when, **figures}}
    FIGURES.write_text(json.dumps(everything, indent=2, sort_keys=True) + "\n")
    write(everything)
