"""docs/benchmarks.md from the figures."""

from typing import Any


def write(figures: dict[str, Any]) -> None:
    """placeholder"""
