"""The Lua scripts and the table of states say the same."""

import re
from importlib.resources import files

import pytest

from service.core.model.states import SCRIPTS, ClaimState
from service.store.scripts import scripts

_LUA = files("service.store").joinpath("lua")
_SHARED = "prelude"
ALL = sorted(entry.name.removesuffix(".lua") for entry in _LUA.iterdir() if entry.name.endswith(".lua"))


def _source(name: str) -> str:
    return _LUA.joinpath(f"{name}.lua").read_text()


def _moves(source: str) -> dict[ClaimState | None, frozenset[ClaimState]]:
    """The table that a script works by."""
    table = re.search(r"^local moves = \{(.*?)\}", source, re.DOTALL | re.MULTILINE)
    assert table, "no table of moves"
    entries = re.findall(r'(\w+) = "([^"]*)"', table[1])
    return {
        None if state == "absent" else ClaimState(state): frozenset(ClaimState(to) for to in targets.split())
        for state, targets in entries
    }


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_moves_as_the_table_of_states_says(name: str) -> None:
    assert _moves(_source(name)) == SCRIPTS[name]


def test_no_other_script_writes_a_claim() -> None:
    for name in set(ALL) - set(SCRIPTS) - {_SHARED}:
        source = _source(name)
        assert "local moves" not in source, name
        assert not re.search(r"\bwrite\(|'(SET|SETEX|DEL|APPEND|RENAME)'", source), name


@pytest.mark.parametrize("name", [name for name in ALL if name != _SHARED])
def test_a_script_documents_its_call_and_its_keys(name: str) -> None:
    head = _source(name).partition("\n\n")[0].splitlines()
    assert all(line.startswith("--") for line in head)
    assert head[0].startswith(f"-- {name}: ")
    text = "\n".join(head)
    assert "-- call" in text
    if name in SCRIPTS:
        assert "KEYS claim output request streams" in text
        assert re.search(r"^-- from ", text, re.MULTILINE)
        assert re.search(r"^-- to ", text, re.MULTILINE)
    else:
        assert re.search(r"^-- KEYS", text, re.MULTILINE)


@pytest.mark.parametrize("name", ALL)
def test_a_script_touches_no_key_that_it_was_not_given(name: str) -> None:
    for key in re.findall(r"redis\.call\('\w+', ([^,)]+)", _source(name)):
        assert re.match(r"KEYS\[|(key|times|sizes)$|CHANNEL$", key), key


def test_every_script_is_loaded_with_the_shared_part() -> None:
    loaded = scripts()
    assert set(loaded) == set(ALL) - {_SHARED}
    assert len({script.sha for script in loaded.values()}) == len(loaded)
    assert all(script.text.startswith(_source(_SHARED).encode()) for script in loaded.values())
