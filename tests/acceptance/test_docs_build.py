"""The documentation builds without a warning, and needs nothing from elsewhere when it is read."""

import re
import sys
from pathlib import Path

import pytest

from tests.support.doc_pages import DOCS
from tests.support.processes import Spawner

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(240)]

FROM_ELSEWHERE = re.compile(r'<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//[^"]*"')


def test_the_pages_build_without_a_warning_and_load_nothing_from_elsewhere(spawn: Spawner, tmp_path: Path) -> None:
    pytest.importorskip("sphinx")
    built = tmp_path / "pages"
    command: list[str | Path] = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", DOCS, built]
    build = spawn(command, name="sphinx")
    assert build.wait(timeout=200) == 0, build.report()

    pages = list(built.rglob("*.html"))
    assert built / "index.html" in pages
    for page in pages:
        assert not FROM_ELSEWHERE.findall(page.read_text(encoding="utf-8")), page
