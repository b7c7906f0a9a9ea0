"""How busy a replica says that it is."""

from __future__ import annotations

import pytest

from service.observability.replica import Load


def after(load: Load, steps: int, *, share: float, begin: float = 0.0, used: float = 0.0) -> float:
    for step in range(1, steps + 1):
        load.note(begin + step * 0.5, used + step * 0.5 * share)
    return load.value


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_steady_load_is_told_as_it_is(share: float) -> None:
    assert after(Load(0.0, 0.0), 200, share=share) == pytest.approx(share, abs=0.01)


def test_a_moment_of_work_is_not_the_load_and_half_a_minute_of_it_is() -> None:
    load = Load(0.0, 0.0)
    assert load.note(0.5, 0.5) < 0.1
    assert after(load, 60, share=1.0, begin=0.5, used=0.5) > 0.8


def test_a_clock_that_stands_still_changes_nothing() -> None:
    load = Load(5.0, 1.0)
    assert load.note(5.0, 1.5) == 0.0
