"""The states of a claim: the table in the code, the pictures, the page and the Lua scripts say the same."""

import re
from pathlib import Path

import pytest

from docs import draw_states
from service.core.model.states import SCRIPTS, ClaimState
from tests.support.doc_pages import DOCS, ROOT

PAGE = DOCS / "concepts" / "claims.md"
LUA = ROOT / "service" / "store" / "lua"
NAMES = {"absent": None, **{state.value: state for state in ClaimState}}
AS_THE_TABLE = "as the table says"


def table() -> set[tuple[str, str, str]]:
    def name(state: ClaimState | None) -> str:
        return "absent" if state is None else state.value

    return {(script, name(before), name(after)) for script, before, after in draw_states.edges()}


def header(script: str, field: str) -> str:
    """What the head of a script says of `from`, or of `to` up to its details."""
    text = (LUA / f"{script}.lua").read_text(encoding="utf-8")
    match = re.search(rf"^-- {field} +(.*(?:\n--  +.*)*)", text, re.MULTILINE)
    assert match is not None, f"{script}.lua does not say `{field}`"
    said = re.sub(r"\s*\n--\s*", " ", match[1])
    return said.partition(":")[0] if field == "to" else said


def moves(script: str) -> set[tuple[str, str]]:
    """The table in a script."""
    text = (LUA / f"{script}.lua").read_text(encoding="utf-8")
    match = re.search(r"^local moves = \{(.*?)\}", text, re.MULTILINE | re.DOTALL)
    assert match is not None, f"{script}.lua has no table of moves"
    pairs = re.findall(r'(\w+) = "([^"]*)"', match[1])
    return {(before, after) for before, afters in pairs for after in afters.split()}


def test_every_script_with_moves_is_in_the_table() -> None:
    with_moves = {path.stem for path in LUA.glob("*.lua") if "local moves" in path.read_text(encoding="utf-8")}
    assert with_moves == set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_allows_what_the_table_allows(script: str) -> None:
    assert moves(script) == {(before, after) for name, before, after in table() if name == script}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("field", ["from", "to"])
def test_the_head_of_a_script_names_its_states(script: str, field: str) -> None:
    said = header(script, field)
    own = {edge for edge in table() if edge[0] == script}
    states = {edge[1] if field == "from" else edge[2] for edge in own}
    if AS_THE_TABLE in said:
        return
    if said.partition(";")[0] == "the same":
        assert all(before == after for _, before, after in own)
        return
    if said == "every active state":
        assert states == {state.value for state in ClaimState if state.active}
        return
    assert {word for word in re.findall(r"\w+", said) if word in NAMES} == states


@pytest.mark.parametrize("name", draw_states.pictures())
def test_the_pictures_are_those_of_the_table(name: str) -> None:
    drawn = (DOCS / "concepts" / name).read_text(encoding="utf-8")
    assert drawn == draw_states.pictures()[name], "run `make docs`"


def test_every_transition_is_in_a_picture() -> None:
    edges = draw_states.edges()
    assert set(filter(draw_states.of_jobs, edges)) | set(filter(draw_states.of_sandboxes, edges)) == edges


def test_the_page_explains_every_transition_and_no_other() -> None:
    told = set()
    for script, before, after in re.findall(
        r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|", PAGE.read_text("utf-8"), re.MULTILINE
    ):
        if script not in SCRIPTS:
            continue
        for start in re.findall(r"\w+", before):
            ends = [start] if after.strip() == "the same" else re.findall(r"\w+", after)
            told |= {(script, start, end) for end in ends}
    assert told == table()


def test_the_page_explains_every_state() -> None:
    told = re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [row for row in told if row[0] in NAMES] == [(s.value, draw_states.group_of(s)) for s in ClaimState]


def test_the_code_names_the_page() -> None:
    text = Path(ROOT / "service" / "core" / "model" / "states.py").read_text(encoding="utf-8")
    assert str(PAGE.relative_to(ROOT)) in text
