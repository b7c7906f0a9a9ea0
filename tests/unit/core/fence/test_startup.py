"""Which variables a shell acts on before its first command, and how a daemon's own are read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.fence import protocol, startup

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BASH_ENV", "/x"),
        ("ENV", "/x"),
        ("SHELLOPTS", "xtrace"),
        ("LC_ALL", "xx_XX"),
        ("LD_PRELOAD", "/x.so"),
        ("LD_LIBRARY_PATH", "/x"),
        ("BASH_FUNC_exit%%", "() { :; }"),
        ("BASH_FUNC_exit()", "() { :; }"),
        ("anything", "() { :; }"),
    ],
)
def test_what_a_shell_acts_on_is_sent_blank_and_carried_beside(name: str, value: str) -> None:
    for env, inherited in (({name: value}, {}), ({}, {name: value})):
        _, sent = protocol.wrapper(
            "true",
            env,
            directory="/d",
            token="0" * 32,
            fingerprint="f",
            boot="b 1",
            timeout=1,
            inherited=inherited,
        )
        assert sent[name] == ""
        assert sent[f"{protocol.SCRIPT_VARIABLE}_0"] == f"{name}={value}"


@pytest.mark.parametrize("name", ["BASH_ENV", "SHELLOPTS", "LC_ALL", "LD_PRELOAD", "BASH_FUNC_exit%%"])
def test_what_a_command_blanks_itself_is_not_what_its_daemon_has(name: str) -> None:
    _, sent = protocol.wrapper(
        "true", {name: ""}, directory="/d", token="0" * 32, fingerprint="f", boot=None, timeout=1, inherited={name: "x"}
    )
    assert set(sent) == {name, protocol.COMMAND_VARIABLE, protocol.SCRIPT_VARIABLE}
    assert sent[name] == ""


@pytest.mark.parametrize(
    ("name", "value"),
    [("PATH", "/x"), ("HOME", "/x"), ("LC_ALL", "C"), ("LC_ALL", "POSIX"), ("PS4", "x"), ("-i", "() { :; }")],
)
def test_what_a_shell_does_not_act_on_is_left_alone(name: str, value: str) -> None:
    assert not startup.acts(name, value)


@given(st.dictionaries(TEXT.filter(lambda name: name and "=" not in name), TEXT))
def test_a_daemons_environment_is_read_as_it_is(environment: dict[str, str]) -> None:
    environ = b"".join(f"{name}={value}\0".encode() for name, value in environment.items())
    assert startup.of_daemon(environ) == environment


def test_a_value_that_can_not_be_sent_is_left_alone() -> None:
    assert startup.of_daemon(b"LD_PRELOAD=\xff\0A=b\0odd\0=c\0") == {"A": "b", "": "c"}


def test_a_daemons_file_of_variables_is_read_as_it_reads_it() -> None:
    lines = b" # no\n\nA=1\n  B = 2 \nC=${A}$HOME$$x${NO}$\nodd\nD=a=b\r\nE=${A"
    assert startup.of_file(lines, {"HOME": "/root", "A": "0"}) == {
        "A": "1",
        "B ": " 2",
        "C": "0/rootx$",
        "D": "a=b",
        "E": "A",
    }
