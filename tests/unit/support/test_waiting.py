import itertools

import pytest

from tests.support.waiting import eventually


async def test_waiting_ends_when_the_condition_holds() -> None:
    looks = itertools.count()

    await eventually(lambda: next(looks) == 2)

    assert next(looks) == 3


async def test_waiting_in_vain_shows_the_condition() -> None:
    with pytest.raises(AssertionError, match="never_true"):
        await eventually(never_true, timeout=0.02)


def never_true() -> bool:
    return False
