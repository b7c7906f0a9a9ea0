"""The simulation behind docs/scale.md."""

from tests.bench.scale import Costs, Shape, simulate


def test_five_hundred_sandboxes_are_looked_at_at_the_pace_that_is_promised() -> None:
    outcome = simulate(Shape(500, 1), Costs())
    assert 160 <= outcome.looks_per_second <= 170
    assert outcome.breaks_at == ""


def test_one_replica_is_what_breaks_first() -> None:
    assert simulate(Shape(4_000, 1), Costs()).breaks_at == "replicas"
    assert simulate(Shape(4_000, 8), Costs()).breaks_at == ""


def test_an_engine_that_answers_slowly_breaks_before_replicas_do() -> None:
    through_its_proxy = Costs(look_engine=1 / 30)
    assert simulate(Shape(60, 1), through_its_proxy).breaks_at == "engine"


def test_shares_are_the_work_that_was_asked_for_though_it_could_not_be_done() -> None:
    shares = simulate(Shape(4_000, 1), Costs()).shares
    assert shares["replicas"] > 1.5
    assert shares["redis"] < 0.5
