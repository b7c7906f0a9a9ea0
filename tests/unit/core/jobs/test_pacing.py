"""The pace of looks: from the number of active jobs, over all queues no faster than they may be looked at together."""

from typing import Any, cast

import pytest

from service.core.jobs.pacing import JOBS_A_QUEUE, SHARE, Pace
from service.ports.store import Store


class NotingStore:
    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, Any]]] = []

    async def poll_slot(self, queue: str, name: str, **what: Any) -> float | None:
        self.asked.append((queue, name, what))
        return 0.0


@pytest.fixture
def store() -> NotingStore:
    return NotingStore()


@pytest.fixture
def pace(store: NotingStore) -> Pace:
    return Pace(cast(Store, store), 3.0)


@pytest.mark.parametrize(
    ("active", "seconds"), [(0, 0.5), (10, 0.5), (100, 0.6), (250, 1.5), (500, 3.0), (501, 3.0), (50_000, 3.0)]
)
def test_the_pace_is_that_of_the_design(pace: Pace, active: int, seconds: float) -> None:
    pace.active = active
    assert pace.seconds() == pytest.approx(seconds)


@pytest.mark.parametrize("active", [1, 500, 7_999, 8_000, 50_000])
async def test_all_queues_together_move_at_one_pace(store: NotingStore, pace: Pace, active: int) -> None:
    pace.active = active
    for number in range(2000):
        await pace.poll_slot(f"cmd_{number}")
    queues = {queue: what["interval"] for queue, _, what in store.asked}
    assert len(queues) == max(1, active // JOBS_A_QUEUE)
    a_second = sum(1 / interval for interval in queues.values())
    assert a_second == pytest.approx(SHARE * max(500, active) / 3.0)


async def test_a_job_stays_in_its_queue(store: NotingStore, pace: Pace) -> None:
    pace.active = 50_000
    for _ in range(3):
        await pace.poll_slot("cmd_1")
    assert len({queue for queue, _, _ in store.asked}) == 1


async def test_reads_besides_are_told_once(store: NotingStore, pace: Pace) -> None:
    pace.charge()
    pace.charge(3)
    await pace.poll_slot("cmd_1")
    await pace.poll_slot("cmd_2")
    assert [what["more"] for _, _, what in store.asked] == [4, 0]
