"""The simulation can fail: rules of the product that are left out are found."""

import inspect

import pytest

from service.core.jobs import poller
from service.store.scripts import scripts
from tests.simulation.mutations import ALL, Edit, Mutation, applied, hunted


@pytest.mark.parametrize("name", ALL)
def test_a_mutation_changes_what_it_says_and_leaves_nothing_behind(name: str) -> None:
    before = dict(scripts())
    with applied(ALL[name]):
        pass
    assert dict(scripts()) == before


def test_there_are_as_many_as_the_rules_ask_for() -> None:
    assert len(ALL) >= 25
    assert all(mutation.rule for mutation in ALL.values())


def test_a_function_and_a_script_are_others_while_it_lasts() -> None:
    run, claim = poller.Poller.run, scripts()["claim"]
    edits = (
        Edit("service.core.jobs.poller:Poller.run", "for id in due:", "for id in []:"),
        Edit("service.core.jobs.poller:Poller.run", "room > 0", "room > 1"),
        Edit("lua:claim", "raw, 'NX', ", "raw, "),
    )
    with applied(Mutation("both", "none", edits)):
        assert poller.Poller.run is not run
        assert scripts()["claim"].sha != claim.sha
        assert b"raw, 'NX', " not in scripts()["claim"].text
    assert poller.Poller.run is run
    assert scripts()["claim"] == claim
    assert "for id in due:" in inspect.getsource(poller.Poller.run)


def test_a_piece_that_is_not_there_once_is_an_error() -> None:
    for old in ("nothing of the kind", "id"):
        mutation = Mutation("idle", "none", (Edit("service.core.jobs.poller:Poller.run", old, ""),))
        with pytest.raises(LookupError, match="times"), applied(mutation):
            pass


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("the_record_stays", "nothing_stays_for_ever"),
        ("a_new_id_each_time", "one_key_one_job"),
    ],
)
def test_a_rule_that_is_left_out_is_found(name: str, rule: str) -> None:
    """These are found in any world; `python -m tests.simulation.mutations` hunts for all of them."""
    assert rule in hunted(ALL[name], first=0, most=2).rules
