"""Numbers in requests to the local engine: what `str.isdigit` takes for one and `int` does not is refused, no bug."""

from __future__ import annotations

import pytest

from service.local_engine import requests, wire


@pytest.mark.parametrize("text", ["\u00b2", "\u0661", "", "-1", " 1", "1_0", "9" * 5000])
def test_only_plain_digits_are_a_number(text: str) -> None:
    assert not wire.is_number(text)
    assert wire.is_number("0")
    assert wire.is_number("65535")


@pytest.mark.parametrize("pattern", [requests._CPU, requests._MEMORY])
def test_a_quantity_is_of_plain_digits(pattern: object) -> None:
    assert pattern.fullmatch("12")  # type: ignore[attr-defined]
    assert not pattern.fullmatch("\u0661\u0662")  # type: ignore[attr-defined]
