"""Links within the repository lead somewhere, down to the heading; and pages are in a table of contents."""

import re
from pathlib import Path

import pytest

from tests.support.doc_pages import DOCS, ROOT, pages

LINK = re.compile(r"(?<!\!)\[[^\]\n]*\]\(([^)\s]+)\)")
ALL = [*pages(), ROOT / "CHANGELOG.md", *sorted((DOCS / "reference").glob("*.md"))]


def prose(page: Path) -> str:
    """The page without its code."""
    text = re.sub(r"^ *(`{3,}).*?^ *\1 *$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """The headings, as they are linked to."""
    text = re.sub(r"^ *(`{3,}).*?^ *\1 *$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        led = (page.parent / path).resolve() if path else page
        assert led.exists(), f"{target} leads nowhere"
        if anchor and led.suffix == ".md":
            assert anchor in anchors(led), f"{target}: there is no such heading"
