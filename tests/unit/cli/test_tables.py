"""Tables, times and sizes as people read them."""

import sys
from datetime import UTC, datetime

import pytest

from service.cli.output import tables
from service.cli.output.tables import Column, ago, between, duration, print_table, size

NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
COLUMNS = (Column("ID"), Column("EXIT", right=True), Column("COMMAND", shrinks=True))


@pytest.mark.parametrize(
    ("count", "shown"),
    ((0, "0 B"), (999, "999 B"), (1000, "1 kB"), (12_345, "12.3 kB"), (999_900, "1 MB"), (5 * 10**9, "5 GB")),
)
def test_sizes_have_three_digits_and_a_unit(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"), ((0.0, "0 s"), (59.9, "59 s"), (187.0, "3:07"), (3787.0, "1:03:07"), (-3.0, "0 s"))
)
def test_durations_grow_into_minutes_and_hours(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


@pytest.mark.parametrize(
    ("then", "shown"),
    (
        ("2026-01-02T11:59:55.000Z", "5 s"),
        ("2026-01-02T11:57:00.000Z", "3 min"),
        ("2026-01-02T10:00:00.000Z", "2 h"),
        ("2025-12-29T12:00:00.000Z", "4 d"),
        ("2026-01-02T12:03:00.000Z", "3 min"),
        (None, ""),
        ("yesterday", ""),
    ),
)
def test_ages_have_one_unit(then: str | None, shown: str) -> None:
    assert ago(then, NOW) == shown


def test_a_span_needs_its_beginning_only() -> None:
    assert between("2026-01-02T11:59:55.000Z", "2026-01-02T12:00:00.000Z") == "5 s"
    assert between(None, "2026-01-02T12:00:00.000Z") == ""
    assert between(datetime.now(UTC).isoformat(), None) == "0 s"


def test_a_pipe_gets_aligned_columns_and_nothing_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [["cmd_1", "0", "x" * 500], ["cmd_22", "137", "a\nb\x1b[2J"]])

    assert capsys.readouterr().out.splitlines() == [
        "ID      EXIT  COMMAND",
        "cmd_1      0  " + "x" * 500,
        "cmd_22   137  a⏎b\\x1b[2J",
    ]


@pytest.mark.parametrize("width", (30, 80, 200))
def test_a_terminal_gets_a_table_that_fits(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(tables, "terminal_width", lambda: width)
    monkeypatch.setenv("NO_COLOR", "1")

    print_table(COLUMNS, [["cmd_1", "0", "x" * 500]])

    lines = capsys.readouterr().out.splitlines()
    assert [len(line) <= width for line in lines] == [True, True]
    assert lines[1].startswith("cmd_1     0  xxx")
    assert lines[1].endswith("…")


def test_a_terminal_gets_colours_and_a_pipe_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [["running", "", "x"]]
    monkeypatch.setenv("TERM", "xterm-256color")
    print_table(COLUMNS, rows)
    plain = capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    print_table(COLUMNS, rows)
    coloured = capsys.readouterr().out

    assert "\x1b[" not in plain
    assert "\x1b[32mrunning" in coloured
