"""What the documentation shows is what happens: every code block is run, and its output compared."""

import sys
from pathlib import Path

import pytest

from tests.acceptance.http_rig import Replica
from tests.support.doc_pages import ROOT, Block, Runner, blocks, environment, pages
from tests.support.processes import Spawner

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

RUN = {"console", "python"}
READ = {"toml", "json", "yaml"}
PICTURES = {"text"}
"""What is looked at, not run: pictures, layouts, what programs print."""


def label(page: Path) -> str:
    return str(page.relative_to(ROOT))


def to_do(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.not_run is None and not block.language.startswith("{")]


@pytest.mark.parametrize("page", pages(), ids=label)
def test_every_block_is_run_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        if block.language.startswith("{") or block.language in PICTURES or block.not_run:
            continue
        assert block.not_run != "", f"{block.where}: say why it is not run"
        assert block.language in RUN | READ, (
            f"{block.where}: a {block.language or 'nameless'} block can't be run; make it console or python, or write "
            "<!-- not run: why --> above it"
        )


@pytest.mark.parametrize("page", [page for page in pages() if to_do(page)], ids=label)
def test_what_a_page_shows_is_what_happens(
    page: Path, spawn: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = to_do(page)
    url = "http://127.0.0.1:8700"
    if any(block.language in RUN for block in todo):
        url = Replica(spawn).url
    for name in ("ONCEBOX_API_KEY", "ONCEBOX_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ONCEBOX_URL", url)
    runner = Runner(url, tmp_path, environment(Path(sys.executable).parent, tmp_path))
    try:
        for block in todo:
            runner.run(block)
    finally:
        runner.close()
