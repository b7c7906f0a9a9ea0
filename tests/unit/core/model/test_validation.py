"""What a request must be like: each refusal names the field."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.core.model import validation
from service.errors import InvalidRequest, PayloadTooLarge
from service.messages import MAX_COMMAND, Encoding, Resources


@pytest.mark.parametrize("owner", ["alice", "a", "team-1_x.y@z", "a" * 128, "..a", "...", "-"])
def test_an_owner_is_one_path_segment(owner: str) -> None:
    assert validation.owner(owner) == owner


@pytest.mark.parametrize("owner", ["", ".", "..", "a/b", "a b", "a\n", "a\0", "é", "a" * 129, "%2e%2e", "a\\b"])
def test_other_owners_are_refused(owner: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validation.owner(owner)
    assert [error.field for error in refused.value.errors] == ["workspace_owner"]


@pytest.mark.parametrize(
    "labels",
    [{"k": ""}, {"k": "v"}, {"a.b/c": "1-2_3.4"}, {"k" * 63: "v" * 63}, {"x.y/" + "k" * 63: "v"}, {}],
)
def test_metadata_are_labels(labels: dict[str, str]) -> None:
    assert validation.metadata(labels) == labels


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k", "-a"), ("k", "a-"), ("k", "a b"), ("k", "v" * 64), ("", "v"), ("k" * 64, "v"), ("-k", "v"),
        ("A_/k", "v"), ("a//k", "v"), ("/k", "v"), ("k/", "v"), ("opensandbox.io/x", "v"), ("k", "é"), ("k\n", "v"),
    ],
)  # fmt: skip
def test_what_is_no_label_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validation.metadata({key: value})
    assert refused.value.errors[0].field.startswith("metadata.")


@pytest.mark.parametrize("key", ["oncebox.io/idem", "OncEbox.IO/tenant", " oncebox.io/x", "ONCEBOX.IO/generation"])
def test_reserved_keys_are_dropped_in_any_letter_case(key: str) -> None:
    assert validation.metadata({key: "v", "mine": "1"}) == {"mine": "1"}


@pytest.mark.parametrize("command", ["", " ", "\n\t"])
def test_an_empty_command_is_refused(command: str) -> None:
    with pytest.raises(InvalidRequest):
        validation.command(command, None)


@pytest.mark.parametrize("command", ["a\0b", "\ud800"])
def test_a_command_that_no_shell_can_take_is_refused(command: str) -> None:
    with pytest.raises(InvalidRequest):
        validation.command(command, None)


def test_a_command_over_its_limit_is_too_large_in_bytes() -> None:
    assert validation.command("x" * MAX_COMMAND, None)
    with pytest.raises(PayloadTooLarge):
        validation.command("é" * (MAX_COMMAND // 2 + 1), None)


@pytest.mark.parametrize("argv", [[], [""], ["a=b"], ["a", "b\0"], ["\ud800"]])
def test_words_that_no_program_can_be_started_with_are_refused(argv: list[str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validation.command(None, argv)
    assert refused.value.errors[0].field.startswith("argv.")


@pytest.mark.parametrize(("text", "argv", "field"), [("a", ["a"], "argv"), (None, None, "command")])
def test_either_a_command_or_words_are_run(text: str | None, argv: list[str] | None, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validation.command(text, argv)
    assert refused.value.errors[0].field == field


def test_words_are_measured_as_they_are_sent() -> None:
    assert validation.command(None, ["echo", "x" * (MAX_COMMAND - 5)])
    with pytest.raises(PayloadTooLarge) as refused:
        validation.command(None, ["echo", "'" * (MAX_COMMAND // 4)])
    assert refused.value.errors[0].field == "argv"


@pytest.mark.parametrize(
    ("text", "encoding", "path", "field"),
    [
        ("\ud800", None, None, "stdin"),
        ("a", Encoding.BASE64, None, "stdin"),
        ("YQ", Encoding.BASE64, None, "stdin"),
        ("YQ==\n", Encoding.BASE64, None, "stdin"),
        ("a", None, "/in", "stdin_path"),
        (None, Encoding.BASE64, "/in", "stdin_encoding"),
    ],
)
def test_an_input_that_can_not_be_is_refused(
    text: str | None, encoding: Encoding | None, path: str | None, field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validation.stdin(text, encoding, path)
    assert refused.value.errors[0].field == field


def test_an_input_is_its_bytes() -> None:
    assert validation.stdin("a\0é", None, None) == "a\0é".encode()
    assert validation.stdin("AP8=", Encoding.BASE64, None) == b"\0\xff"
    assert validation.stdin("", None, None) == b""
    assert validation.stdin(None, None, "/in") is None


@pytest.mark.parametrize(
    "env", [{"": "v"}, {"A=B": "v"}, {"A\0": "v"}, {"A": "\0"}, {"OURS": "v"}, {"A": "x" * (MAX_COMMAND + 1)}]
)
def test_an_environment_that_can_not_be_is_refused(env: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        validation.env(env, reserved="OURS".__eq__)


@pytest.mark.parametrize(
    "wanted",
    [{"oncebox.io/tenant": "other"}, {"OnceBox.io/idem": ""}, {"a b": "c"}, {"k": "é"}, {"opensandbox.io/x": "v"}],
)
def test_a_filter_that_no_caller_s_label_can_meet_is_refused_by_name(wanted: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validation.metadata_filter(wanted)
    assert refused.value.errors[0].field.startswith("metadata")


# -- what any runtime of the engine would refuse, drop or choke on

KUBERNETES = re.compile(
    r"([+-]?)([0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]+|)"
)
"""The grammar of a quantity in its API conventions: a signed number and a binary or decimal suffix, or an exponent."""
UNITS = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}

quantities = st.one_of(
    st.from_regex(KUBERNETES, fullmatch=True),
    st.text("0123456789.eEinumkKMGTP+- ", max_size=20),
    st.from_regex(re.compile(r"[0-9]{1,20}(k|K|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|m|b|)"), fullmatch=True),
    st.from_regex(re.compile(r"[0-9]{1,3}(\.[0-9]{1,4})?m?"), fullmatch=True),
)


def by_kubernetes(text: str) -> Decimal | None:
    """What a quantity is to Kubernetes; None: it can't parse it."""
    met = KUBERNETES.fullmatch(text)
    if met is None:
        return None
    number, suffix = Decimal(met[2]), met[3]
    if suffix in BINARY:
        return number * Decimal(1024) ** BINARY[suffix]
    exponent = UNITS[suffix] if suffix in UNITS else int(suffix[1:])
    return number.scaleb(exponent) * (-1 if met[1] == "-" else 1)


def memory_by_docker(text: str) -> int | None:
    """Bytes to the Docker runtime, which reads units in any letter case; None: it drops the limit."""
    met = re.fullmatch(r"([0-9]+)([kmgt]i?|[kmgt]?b)?", text, re.IGNORECASE)
    if met is None or int(met[1]) == 0:
        return None
    unit = (met[2] or "").lower().removesuffix("b")
    step = 1024 if unit.endswith("i") else 1000
    return int(met[1]) * int(step ** (" kmgt".index(unit[0]) if unit else 0))


def cpu_by_docker(text: str) -> Decimal | None:
    """CPUs to the Docker runtime; None: it drops the limit."""
    try:
        found = Decimal(text[:-1]) / 1000 if text.endswith("m") else Decimal(text)
    except ArithmeticError:
        return None
    return found if found > 0 else None


def refused(wanted: Resources) -> list[str]:
    """The fields that are refused."""
    try:
        validation.resources(wanted)
    except InvalidRequest as error:
        return [each.field for each in error.errors]
    return []


@given(quantities)
def test_memory_that_is_let_through_is_the_same_number_of_bytes_to_every_runtime(text: str) -> None:
    if refused(Resources(memory=text)):
        assert refused(Resources(memory=text)) == ["resources.memory"]
        return
    assert by_kubernetes(text) == memory_by_docker(text)
    assert 0 < (memory_by_docker(text) or 0) < 2**63


@given(quantities)
def test_cpus_that_are_let_through_are_the_same_number_to_every_runtime(text: str) -> None:
    if refused(Resources(cpu=text)):
        assert refused(Resources(cpu=text)) == ["resources.cpu"]
        return
    found = by_kubernetes(text)
    assert found is not None
    assert found == cpu_by_docker(text)
    assert found * 1000 == int(found * 1000) > 0


@pytest.mark.parametrize("memory", ["1", "262144k", "256Ki", "512Mi", "4Gi", "1T", "1000000000"])
@pytest.mark.parametrize("cpu", ["1", "500m", "0.5", "1.25", "16", "0.001", "2500m"])
def test_quantities_in_use_are_let_through(memory: str, cpu: str) -> None:
    assert validation.resources(Resources(memory=memory, cpu=cpu)) == Resources(memory=memory, cpu=cpu)


@pytest.mark.parametrize("memory", ["262144K", "1.5Gi", "512m", "1E", "1Pi", "0", "0Mi", "-1", "1e9", "4gi", "4GB", ""])
def test_memory_that_one_runtime_reads_otherwise_is_refused(memory: str) -> None:
    with pytest.raises(InvalidRequest):
        validation.resources(Resources(memory=memory))


@pytest.mark.parametrize("cpu", ["0", "0.0", "0m", "1.5m", "0.0001", "1e3", ".5", "1.", "", "2 ", "1k"])
def test_cpus_that_one_runtime_reads_otherwise_are_refused(cpu: str) -> None:
    with pytest.raises(InvalidRequest):
        validation.resources(Resources(cpu=cpu))


@pytest.mark.parametrize(
    "image",
    [
        "x", "python:3.12", "a/b", "a.b/c", "localhost/x", "localhost:5000/a/b:T_1.x", "[::1]:5000/a", "A.b/c", "a__b",
        "a---b", "r.io/a@sha256:" + "0" * 64, "r.io/a:1@sha256:" + "f" * 64, "10.0.0.1:5000/x",
    ],
)  # fmt: skip
def test_an_image_is_a_reference(image: str) -> None:
    assert validation.image(image) == image


@pytest.mark.parametrize(
    "image",
    [
        "", " x", "x ", "x\n", "Python", "a//b", "/a", "a/", "a:", "a:-", "a@sha256:0", "a b", "a:" + "t" * 129, "-a",
        "a_.b", "https://r.io/a", "é", "a@b@c", "r.io:x/a",
    ],
)  # fmt: skip
def test_what_no_registry_can_have_is_refused(image: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validation.image(image)
    assert [error.field for error in refused.value.errors] == ["image"]


@pytest.mark.parametrize("name", ["é", "A\n", "A\t", "\x7f", "A\x1b[0m"])
def test_a_sandbox_s_variable_has_a_name_that_every_runtime_takes(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        validation.sandbox_env({name: "v"}, reserved=lambda name: False)
    assert refused.value.errors[0].field.startswith("env.")


@pytest.mark.parametrize("name", ["A", "a.b-c", "BASH_FUNC_f%%", "1", "A B"])
def test_other_names_of_variables_are_let_through(name: str) -> None:
    assert validation.sandbox_env({name: "v"}, reserved=lambda name: False) == {name: "v"}


@pytest.mark.parametrize("text", ["$", "$HOME", "a$", "$ (X)", "${X}", "100 $", ""])
def test_a_dollar_that_every_runtime_reads_alike_may_stand_anywhere(text: str) -> None:
    assert kubernetes_expansion(text, {"X": "x"}) == text
    assert validation.expandable([text], {"A": text}) is None


@given(st.text(alphabet="$()Xa ", max_size=12))
def test_what_kubernetes_would_read_otherwise_is_named_and_escaped_it_arrives(text: str) -> None:
    if validation.expandable(["sh", text], {}) is None:
        assert kubernetes_expansion(text, {"X": "x"}) == text
        assert validation.expandable([], {"A": text}) is None
    else:
        assert validation.expandable(["sh", text], {}) == "entrypoint[1]"
        assert validation.expandable(["sh"], {"A": text}) == "env.A"
    assert kubernetes_expansion(text.replace("$", "$$"), {"X": "x", "a": "y"}) == text


def kubernetes_expansion(text: str, known: dict[str, str]) -> str:
    """What Kubernetes makes of a value (`third_party/forked/golang/expansion/expand.go`)."""
    found, at = "", 0
    while at < len(text):
        rest = text[at + 1 :]
        if text[at] != "$" or not rest:
            found, at = found + text[at], at + 1
        elif rest[0] == "$":
            found, at = found + "$", at + 2
        elif rest[0] == "(" and ")" in rest:
            name = rest[1 : rest.index(")")]
            found, at = found + known.get(name, f"$({name})"), at + 3 + len(name)
        else:
            found, at = found + "$" + rest[0], at + 2
    return found
