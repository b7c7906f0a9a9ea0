"""The console as it is served: its policy, its size, and that nothing in it comes from elsewhere."""

import re
from html.parser import HTMLParser

import pytest

from service.api.console import pages
from service.core.model.states import ClaimState
from service.messages import JobState, Reason, SandboxState
from service.settings import Settings
from tests.unit.api.fakes import FakeCore, ask

PAGE = pages()[""][0].decode()
SCRIPTS = {path: body.decode() for path, (body, _) in pages().items() if path.endswith(".js")}
MOST = 60 * 1024


class Found(HTMLParser):
    """Every element of the page, and the texts of its options by form."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.states: dict[str, list[str]] = {}
        self._form = ""
        self._select: str | None = None
        self.feed(PAGE)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        if tag == "template":
            self._form = given["id"] or ""
        if tag == "select":
            self._select = given["name"]

    def handle_data(self, data: str) -> None:
        if self._select == "state" and self.get_starttag_text() == "<option>" and data.strip():
            self.states.setdefault(self._form, []).append(data)


@pytest.mark.parametrize("path", ["/console", *(f"/console{name}" for name in pages() if name)])
async def test_every_part_lets_nothing_in_and_sets_no_cookie(path: str) -> None:
    answer = await ask(FakeCore().app(), "GET", path)
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "set-cookie" not in answer.headers
    assert answer.headers["cache-control"] == "no-cache"
    again = await ask(FakeCore().app(), "GET", path, headers=[("If-None-Match", answer.headers["etag"])])
    assert (again.status, again.body) == (304, b"")


async def test_it_can_be_turned_off() -> None:
    app = FakeCore().app(Settings(console=False))
    for path in pages():
        assert (await ask(app, "GET", f"/console{path}")).status == 404


def test_all_script_is_less_than_60_kib() -> None:
    assert sum(len(script.encode()) for script in SCRIPTS.values()) < MOST


def test_the_page_has_no_script_and_no_style_of_its_own() -> None:
    for tag, given in Found().elements:
        assert tag != "style"
        assert tag != "script" or given.get("src"), "inline"
        assert not [name for name in given if name.startswith("on") or name == "style"], given
        for name in ("src", "href"):
            assert not re.match(r"\w*:|//", given.get(name) or ""), f"from elsewhere: {given[name]}"


def test_no_script_makes_markup_of_text_or_asks_elsewhere() -> None:
    forbidden = re.compile(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|DOMParser|https?:")
    for path, script in SCRIPTS.items():
        found = forbidden.search(script.replace("http://www.w3.org/2000/svg", ""))
        assert found is None, f"{path}: {found}"


def test_the_page_has_words_for_every_reason_and_every_state_of_a_claim() -> None:
    ids = {given.get("id") for _, given in Found().elements}
    assert {reason.value for reason in Reason} <= ids
    assert {state.value for state in ClaimState if state.value != "done"} <= ids


def test_its_filters_have_every_state() -> None:
    states = Found().states
    assert set(states["jobs-filters"]) - {"any"} == {state.value for state in JobState}
    assert set(states["sandboxes-filters"]) - {"any"} == {state.value for state in SandboxState}
