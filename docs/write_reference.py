"""Writes ``docs/reference`` from the code: ``python docs/write_reference.py`` (``make docs`` does so first).

Settings, problems, states, routes and commands are listed in one place each, the code; a test fails when a page
here says something else.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import click
import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import oncebox
from service import errors, messages, settings
from service.api.openapi import documents
from service.api.schema_words import in_words
from service.cli.app import SECTIONS, app

HERE = Path(__file__).resolve().parent / "reference"
NOTE = "<!-- Made from the code by docs/write_reference.py (`make docs`). Change it there. -->\n\n"


def pages() -> dict[str, str]:
    """File name -> text of every page of the reference."""
    return {
        name: NOTE + text
        for name, text in {
            "settings.md": settings_page(),
            "problems.md": problems_page(),
            "states.md": states_page(),
            "cli.md": cli_page(),
            "http.md": http_page(),
            "sdk.md": sdk_page(),
        }.items()
    }


# -- settings


def settings_page() -> str:
    """``service/settings.py``."""
    said = attribute_docs(settings.Settings)
    rows = [
        (
            f"`{settings.PREFIX}{item.name.upper()}`",
            default_of(item.name),
            said[item.name],
        )
        for item in msgspec.structs.fields(settings.Settings)
    ]
    return (
        "# Settings\n\n"
        "Environment variables, and the same names in a TOML file that `ONCEBOX_CONFIG` names; the environment wins.\n"
        "Durations are seconds, plain numbers; sizes are bytes. An empty variable counts as not set. A value that\n"
        "can't be used stops the start with a message that names the variable; an unknown `ONCEBOX_` name is warned\n"
        "about. "
        "`oncebox doctor` checks what is set.\n\n" + table(("variable", "default", "meaning"), rows)
    )


def default_of(name: str) -> str:
    """The default of a setting, as one would write it."""
    value = getattr(settings.Settings(), name)
    if name == "shutdown_delay":
        return "5, embedded 0"
    if value is None or value == () or value is False:
        return ""
    if value is True:
        return "`1`"
    if name == "workspace_dirs":
        value = ",".join(f"{directory}:{mount}" for directory, mount in value)
    if isinstance(value, float):
        value = f"{value:.10g}"
    return f"`{value}`"


# -- problems


def problems_page() -> str:
    """``service/errors.py``."""
    found: set[type[errors.OnceboxError]] = {errors.Internal, *errors.BY_CODE.values()}
    classes = sorted(found, key=lambda cls: (cls.status, cls.code))
    rows = [
        (f"`{cls.code}`", cls.status, "yes" if cls.retryable else "no", f"`{cls.__name__}`", one_line(cls.__doc__))
        for cls in classes
    ]
    client = [
        (f"`{cls.__name__}`", one_line(cls.__doc__))
        for cls in (oncebox.CommandFailed, oncebox.ConnectionFailed, oncebox.DeadlineExceeded, oncebox.UnexpectedAnswer)
    ]
    return (
        "# Problems\n\n"
        "Every answer that is not a success is `application/problem+json` (RFC 9457) with `type`, `title`, `status`,\n"
        "`detail`, `code` and `retryable`; `command_id`, `sandbox_id` and `errors` (`field`, `message` each) where\n"
        "they apply. `Retry-After` is there wherever waiting helps. A body that is not JSON is `INVALID_REQUEST` with\n"
        "status 400. `OUTCOME_UNKNOWN` is retryable only where the request had an `Idempotency-Key`.\n\n"
        "The SDK raises one class a code, all of them an `OnceboxError` with `code`, `retryable`, `command_id`,\n"
        "`sandbox_id`, `errors`, `retry_after`, `request_id` and `idempotency_key` (of the request that failed).\n\n"
        + table(("code", "status", "retryable", "exception", "meaning"), rows)
        + "\nThe SDK's own:\n\n"
        + table(("exception", "meaning"), client)
    )


# -- states


def states_page() -> str:
    """The enums of ``service/messages.py``."""
    return (
        "# States and reasons\n\n"
        "A job is over in every state but `pending`, `running` and `unknown`. `failed` ends an attempt: a retry with\n"
        "the same key really tries again.\n\n"
        "## States of a job\n\n"
        + enum_table(messages.JobState, "state")
        + "\n## Reasons of a job\n\nA closed list: `reason` is one of these, or null.\n\n"
        + enum_table(messages.Reason, "reason")
        + "\n## States of a sandbox\n\nWhat the engine says.\n\n"
        + table(("state", "may still be used"), [(f"`{s.value}`", lives(s)) for s in messages.SandboxState])
        + "\n## Encodings of output\n\n"
        + enum_table(messages.Encoding, "encoding")
    )


def lives(state: messages.SandboxState) -> str:
    """What the last column says of a sandbox."""
    return "yes" if state.live else "no" if state.over else "not known"


def enum_table(kind: type[Enum], name: str) -> str:
    """The members of an enum with what is said of them."""
    said = attribute_docs(kind)
    return table((name, "meaning"), [(f"`{member.value}`", said[member.name]) for member in kind])


# -- command line


def cli_page() -> str:
    """The commands' own help."""
    text = (
        "# Command line\n\n"
        "What `oncebox COMMAND --help` says. `ONCEBOX_URL` and `ONCEBOX_API_KEY` say where the service is and who you\n"
        "are; `run` without `ONCEBOX_URL` starts a service of its own.\n"
    )
    for title, names in SECTIONS.items():
        text += f"\n## {title}\n"
        for name in names:
            text += help_of(app.commands[name], f"oncebox {name}")
    return text


def help_of(command: click.Command, path: str) -> str:
    """A command's help as a section; those of its subcommands behind it."""
    with click.Context(command, info_name=path, **command.context_settings) as context:
        context.max_content_width = context.terminal_width = 100
        shown = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    text = f"\n### {path}\n\n```text\n{shown}\n```\n"
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            text += help_of(command.commands[name], f"{path} {name}")
    return text


# -- HTTP


def http_page() -> str:
    """The OpenAPI document."""
    document: dict[str, Any] = msgspec.json.decode(documents()[0])
    text = (
        "# HTTP\n\n"
        "A replica serves this as `/openapi.json`, and as a page under `/docs`. JSON in and out, UTF-8, `snake_case`;\n"
        "times are RFC 3339 in UTC. Every route under `/v1` answers without that prefix too. Unknown fields and\n"
        "unknown parameters are refused. Problems are listed in [Problems](problems.md).\n"
    )
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            text += operation_section(method.upper(), path, operation)
    text += "\n## Messages\n"
    for name, schema in document["components"]["schemas"].items():
        if schema.get("properties"):
            text += f"\n### {name}\n\n{one_line(schema.get('description'))}\n\n{fields_table(name, schema)}"
    return text


def operation_section(method: str, path: str, operation: dict[str, Any]) -> str:
    """One route."""
    text = f"\n## {method} {path}\n\n{operation['summary']}\n\n"
    rows = [
        (f"`{item['name']}`", item["in"], type_of(item["schema"]), one_line(item.get("description")))
        for item in operation["parameters"]
    ]
    if rows:
        text += table(("parameter", "in", "type", "meaning"), rows) + "\n"
    if body := operation.get("requestBody"):
        taken = (type_of(held["schema"]) if held else f"`{media}`" for media, held in body["content"].items())
        text += f"Body: {', '.join(taken)}\n\n"
    answers: list[tuple[str, str, str]] = []
    refused: list[str] = []
    for status, response in operation["responses"].items():
        content = response.get("content", {})
        if "application/problem+json" in content:
            refused.append(f"{status} {response['description'].replace('; ', ', ')}")
            continue
        kinds = "; ".join(
            f"{media}: {type_of(held['schema'])}" if held.get("schema") else media for media, held in content.items()
        )
        answers.append((status, response["description"], kinds))
    text += table(("status", "what", "body"), answers)
    return text + (f"\nProblems: {'; '.join(refused)}.\n" if refused else "")


def fields_table(name: str, schema: dict[str, Any]) -> str:
    """The fields of a message."""
    needed = schema.get("required", [])
    kind = getattr(messages, name, None) or getattr(errors, name)
    said: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__ in (messages.__name__, errors.__name__):
            said |= attribute_docs(base)
    rows = [
        (f"`{field}`", type_of(shown), "yes" if field in needed else "", said.get(field, ""))
        for field, shown in schema["properties"].items()
    ]
    return table(("field", "type", "required", "meaning"), rows)


def type_of(schema: dict[str, Any]) -> str:
    """A schema in a few words."""

    def code(text: str) -> str:
        return f"`{text}`"

    return in_words(schema, named=code, code=code)


# -- SDK


def sdk_page() -> str:
    """What ``oncebox`` exports; the texts are the docstrings, which the build reads."""
    text = (
        "# SDK\n\n"
        "`from oncebox import Client, AsyncClient`: the same methods in both; those of the second are awaited.\n"
        "Everything is typed. It needs nothing of the server: `pip install oncebox`.\n"
    )
    sections = {
        "Client": ("Client", "Sandbox", "Job", "JobResult", "MapResult"),
        "AsyncClient": ("AsyncClient", "AsyncSandbox", "AsyncJob"),
    }
    for title, names in sections.items():
        text += f"\n## {title}\n"
        for name in names:
            text += autodoc(name, inherited=True)
    listed = {name for names in sections.values() for name in names}
    failures = [name for name in oncebox.__all__ if is_error(name)]
    text += "\n## Exceptions\n"
    for name in sorted(failures, key=lambda name: (name != "OnceboxError", name)):
        text += autodoc(name)
    text += "\n## Messages\n"
    for name in oncebox.__all__:
        if name not in listed and name not in failures:
            text += autodoc(name)
    return text


def is_error(name: str) -> bool:
    """Whether an exported name is an exception."""
    return issubclass(getattr(oncebox, name), Exception)


def autodoc(name: str, *, inherited: bool = False) -> str:
    """A directive for the build."""
    more = "   :inherited-members:\n" if inherited else ""
    return f"\n```{{eval-rst}}\n.. autoclass:: oncebox.{name}\n   :members:\n{more}```\n"


# -- texts


def attribute_docs(kind: type) -> dict[str, str]:
    """The docstrings of a class's attributes; empty for those without one."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    body = tree.body[0]
    assert isinstance(body, ast.ClassDef)
    found: dict[str, str] = {}
    name = ""
    for node in body.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            if name:
                found[name] = one_line(node.value.value)
            name = ""
            continue
        name = ""
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        if name:
            found[name] = ""
    return found


def one_line(text: str | None) -> str:
    """A docstring in one line of Markdown."""
    return " ".join((text or "").replace("``", "`").split())


def table(head: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> str:
    """A Markdown table."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def main() -> None:
    """Write what differs."""
    HERE.mkdir(exist_ok=True)
    for name, text in pages().items():
        path = HERE / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
