"""The picture of a submission's way through the core is that of its imports, and the rooms are those there are."""

from __future__ import annotations

import re

from tests.support.doc_pages import ROOT
from tests.unit.test_order_of_modules import LAYERS, OWN

TEXT = (ROOT / "CONTRIBUTING.md").read_text()
CORE = "service.core."
LINE = re.compile(r"( *)([a-z]+/[a-z]+)(?:  .*)?")


def arrows() -> list[tuple[str, str]]:
    """Each module of the picture, and the one that it stands below."""
    _, _, picture = TEXT.partition("```text\n")
    found: list[tuple[str, str]] = []
    above: list[str] = []
    for line in picture.partition("```")[0].splitlines():
        match = LINE.fullmatch(line)
        assert match is not None, line
        depth = len(match[1]) // 2
        found += [(above[depth - 1], match[2])] if depth else []
        above[depth:] = [match[2]]
    return found


def test_a_module_of_the_picture_uses_those_below_it() -> None:
    imports = {(each.by, each.of) for each in OWN}
    assert len(arrows()) > 12
    for by, of in arrows():
        assert (CORE + by.replace("/", "."), CORE + of.replace("/", ".")) in imports, f"{by} does not use {of}"


def test_the_rooms_are_named_in_their_order() -> None:
    said = re.findall(r"`([a-z]+)`", TEXT.partition("**The core has rooms**")[2].partition("`core/app.py`")[0])
    rank = [name.removeprefix(CORE) for rooms in LAYERS for name in sorted(rooms, reverse=True)]
    rooms = [path.parent.name for path in (ROOT / "service/core").glob("*/__init__.py")]
    assert sorted(said) == sorted(rooms)
    assert said == [name for name in rank if name in rooms]
