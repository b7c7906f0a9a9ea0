import pytest

from tests.support.waiting import eventually


async def test_waiting_ends_when_the_condition_holds() -> None:
    looks: list[int] = []

    await eventually(lambda: looks.append(0) or len(looks) == 3)  # type: ignore[func-returns-value]

    assert len(looks) == 3


async def test_waiting_in_vain_shows_the_condition() -> None:
    with pytest.raises(AssertionError, match="never_true"):
        await eventually(lambda: (never_true := False), timeout=0.02)
