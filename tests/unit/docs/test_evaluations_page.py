"""The programs of the how-to "Run 500 evaluations": ours is run as all of the documentation is, those of others not."""

import pytest

from tests.support.doc_pages import DOCS, Block, blocks

OURS, *THE_REST = [block for block in blocks(DOCS / "howto" / "evaluations.md") if block.language == "python"]
OTHERS = [block for block in THE_REST if block.not_run]


def test_ours_has_at_most_15_lines() -> None:
    assert len(OURS.code.strip().splitlines()) <= 15


@pytest.mark.parametrize("program", OTHERS, ids=["e2b", "modal"])
def test_the_others_are_programs(program: Block) -> None:
    compile(program.code, program.where, "exec")
