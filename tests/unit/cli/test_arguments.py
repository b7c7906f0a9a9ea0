"""What is refused on a command line before anything is asked for: of every command, for every option and argument."""

import json
from collections.abc import Iterator

import click
import pytest
from click.types import UnprocessedParamType

from service.cli.app import app
from service.cli.arguments import Command, Group
from service.cli.problems import PASS_ON
from tests.unit.cli.conftest import Invoke
from tests.unit.cli.fakes import COMMAND_ID, FakeService

NO_TEXT = "caf\udce9"
"""As Python reads the bytes ``caf\\xe9`` of a command line in UTF-8."""


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)


COMMANDS = dict(commands(app))
OPTIONS = [
    (path, param)
    for path, command in COMMANDS.items()
    for param in command.params
    if isinstance(param, click.Option) and not param.is_flag
]
ARGUMENTS = [
    (path, param)
    for path, command in COMMANDS.items()
    for param in command.params
    if isinstance(param, click.Argument) and not isinstance(param.type, UnprocessedParamType)
]
REST: dict[tuple[str, ...], list[str]] = {
    ("run",): ["--", "true"],
    ("exec",): ["sb", "--", "true"],
    ("logs",): [COMMAND_ID],
    ("cp",): ["sb:/a", "b"],
    ("wait",): [COMMAND_ID],
}
"""What a command needs to be complete."""
GOOD = {"timeout": "90"}
"""By argument, what is no mistake; for the others any word is."""


def refused(oncebox: Invoke, path: tuple[str, ...], words: list[str], name: str) -> str:
    result = oncebox(*path, *words)
    assert result.exit_code == (125 if path[0] in PASS_ON else 2), result.output
    assert name in result.stderr
    assert f"See `oncebox {' '.join(path)} --help`." in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""
    return result.stderr


def named(case: object) -> str:
    return "-".join(case) if isinstance(case, tuple) else str(getattr(case, "name", case))


def test_every_command_is_of_the_kind_that_checks() -> None:
    assert ("sandboxes", "create") in COMMANDS
    assert all(isinstance(command, Command | Group) for command in COMMANDS.values())


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=named)
def test_an_empty_value_is_refused_with_the_options_name(
    fake: FakeService, oncebox: Invoke, path: tuple[str, ...], option: click.Option
) -> None:
    for words in ([option.opts[-1], ""], [f"{option.opts[-1]}="]):
        refused(oncebox, path, [*words, *REST.get(path, [])], option.opts[-1])

    assert (fake.created, fake.submitted, fake.asked) == ([], [], [])


@pytest.mark.parametrize(("path", "argument"), ARGUMENTS, ids=named)
@pytest.mark.parametrize("value", ("", NO_TEXT))
def test_an_argument_that_is_empty_or_no_text_is_refused(
    fake: FakeService, oncebox: Invoke, path: tuple[str, ...], argument: click.Argument, value: str
) -> None:
    arguments = [param for param in COMMANDS[path].params if isinstance(param, click.Argument)]
    words = [value if param is argument else GOOD.get(param.name or "", "x") for param in arguments]

    if value and isinstance(argument.type, click.Path):
        return  # a file of this machine may have any name

    said = refused(oncebox, path, words, argument.make_metavar(click.Context(COMMANDS[path])))

    assert "is not one of" in said or ("it is not UTF-8" if value else "it is empty") in said


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=named)
def test_bytes_that_are_no_text_are_refused_with_the_options_name(
    oncebox: Invoke, path: tuple[str, ...], option: click.Option
) -> None:
    if isinstance(option.type, click.Path):
        return  # a file may have such a name
    for value in (NO_TEXT, f"{NO_TEXT}=x", f"x={NO_TEXT}"):
        refused(oncebox, path, [option.opts[-1], value, *REST.get(path, [])], option.opts[-1])


@pytest.mark.parametrize(
    "words", (("--", NO_TEXT), ("--", "echo", NO_TEXT), (NO_TEXT,), ("--json", "--", NO_TEXT), (f"--{NO_TEXT}",))
)
def test_a_command_that_is_no_text_is_a_usage_error(fake: FakeService, oncebox: Invoke, words: tuple[str, ...]) -> None:
    result = oncebox("run", *words)

    assert result.exit_code == 125
    assert "bug" not in result.stderr
    assert (fake.created, fake.submitted) == ([], [])


def test_an_error_about_such_bytes_can_be_json(oncebox: Invoke) -> None:
    result = oncebox("ps", "--json", "--state", NO_TEXT)

    assert result.exit_code == 2
    assert json.loads(result.stderr)["error"]["code"] == "USAGE"


@pytest.mark.parametrize("follows", ("--", "--detach", "--image"))
@pytest.mark.parametrize("option", ("--sandbox", "--key", "--cwd"))
def test_an_option_without_its_value_does_not_eat_the_next_one(
    fake: FakeService, oncebox: Invoke, option: str, follows: str
) -> None:
    """As where a variable is not set, nor quoted: ``run --sandbox $ID -- true``."""
    refused(oncebox, ("run",), [option, follows, "true"], option)

    assert (fake.created, fake.submitted) == ([], [])


@pytest.mark.parametrize(("path", "option"), OPTIONS, ids=named)
def test_an_option_at_the_end_without_its_value_is_this_commands_usage_error(
    oncebox: Invoke, path: tuple[str, ...], option: click.Option
) -> None:
    refused(oncebox, path, [option.opts[-1]], option.opts[-1])


def test_an_empty_variable_is_a_variable(fake: FakeService, oncebox: Invoke) -> None:
    oncebox("run", "--env", "CI=", "--", "true")

    assert fake.submitted[0]["env"] == {"CI": ""}


@pytest.mark.parametrize("group", ("sandboxes", "keys"))
def test_a_group_alone_prints_its_help(oncebox: Invoke, group: str) -> None:
    alone, asked = oncebox(group), oncebox(group, "--help")

    assert (alone.exit_code, alone.stderr) == (0, "")
    assert alone.stdout == asked.stdout
    assert f"Usage: oncebox {group}" in alone.stdout


@pytest.mark.parametrize(
    ("text", "seconds"),
    (("90", 90), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("1H30M", 5400), ("1h90", 3690)),
)
def test_a_duration_is_seconds_however_it_is_written(
    fake: FakeService, oncebox: Invoke, text: str, seconds: int
) -> None:
    assert oncebox("run", "--timeout", text, "--", "true").exit_code == 0

    assert fake.submitted[0]["timeout"] == seconds


@pytest.mark.parametrize("text", ("s", "m", "90x", "1m1h", "-5", "1.5h", "\uff11h", "0", "5h", "999999999d"))
def test_what_is_no_duration_or_too_long_is_refused(fake: FakeService, oncebox: Invoke, text: str) -> None:
    refused(oncebox, ("run",), [f"--timeout={text}", "--", "true"], "--timeout")

    assert fake.submitted == []
