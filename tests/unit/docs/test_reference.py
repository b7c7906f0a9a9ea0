"""The reference is what the code says, and leaves nothing out."""

import inspect

import msgspec
import pytest

import oncebox
from docs import write_reference
from service import errors, messages, settings
from service.cli.app import app
from tests.support.doc_pages import DOCS

PAGES = write_reference.pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_in_step_with_the_code(name: str) -> None:
    path = DOCS / "reference" / name
    assert path.exists(), "run `make docs`"
    assert path.read_text(encoding="utf-8") == PAGES[name], "run `make docs`"


def test_there_is_no_other_page() -> None:
    assert {path.name for path in (DOCS / "reference").iterdir()} == set(PAGES)


def test_every_setting_is_there_and_says_what_it_is() -> None:
    said = write_reference.attribute_docs(settings.Settings)
    for field in msgspec.structs.fields(settings.Settings):
        assert said[field.name], f"Settings.{field.name} has no docstring"
        assert f"`ONCEBOX_{field.name.upper()}`" in PAGES["settings.md"]


def test_every_problem_is_there() -> None:
    for code in errors.BY_CODE:
        assert f"`{code}`" in PAGES["problems.md"]


def test_every_state_and_reason_is_there_and_says_what_it_is() -> None:
    for kind in (messages.JobState, messages.Reason, messages.Encoding):
        said = write_reference.attribute_docs(kind)
        for member in kind:
            assert said[member.name], f"{member} has no docstring"
            assert f"| `{member.value}` | {said[member.name]}" in PAGES["states.md"]


def test_every_command_is_there() -> None:
    for name in app.commands:
        assert f"### oncebox {name}\n" in PAGES["cli.md"]


def test_every_public_name_of_the_sdk_is_there() -> None:
    for name in oncebox.__all__:
        assert f"oncebox.{name}\n" in PAGES["sdk.md"]
        assert inspect.getdoc(getattr(oncebox, name)), f"{name} has no docstring"


@pytest.mark.parametrize("kind", [oncebox.Client, oncebox.AsyncClient, oncebox.Sandbox, oncebox.AsyncSandbox])
def test_every_public_method_of_the_sdk_has_a_docstring(kind: type) -> None:
    for name, method in inspect.getmembers(kind, inspect.isfunction):
        assert name.startswith("_") or inspect.getdoc(method), f"{kind.__name__}.{name} has no docstring"
