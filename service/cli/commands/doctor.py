"""``oncebox doctor``: is everything there that the settings name, and if not, what is to be mended?"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from typing import TYPE_CHECKING

import click

from service.cli.arguments import Command
from service.cli.checks.findings import Finding, judge_settings, wrong
from service.cli.output.tables import STYLES
from service.cli.output.terminal import coloured, print_json, printable, put
from service.cli.state import State, json_option, verbose_option
from service.settings import Settings, SettingsError, load

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MARKS = {"ok": "ok", "warning": "warn", "wrong": "WRONG", "skipped": "-"}


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  oncebox doctor                  # what is set, and what it leads to
  oncebox doctor --try            # makes a sandbox, runs a command in it, deletes it
  oncebox doctor --json | jq -r '.findings[] | select(.verdict == "wrong").mend'
""",
)
@click.option("--try", "attempt", is_flag=True, help="Also make a sandbox, run a command in it and delete it.")
@json_option
@verbose_option
@click.pass_obj
def doctor(_: State, attempt: bool, as_json: bool) -> int:
    """Check the settings and what they name (Redis, engine, service); exit code 1 if anything is wrong."""
    findings = asyncio.run(_collect(attempt=attempt, show=not as_json))
    counted = Counter(finding.verdict for finding in findings)
    if as_json:
        print_json({"healthy": not counted["wrong"], "findings": findings})
    elif counted["wrong"]:
        put(f"\n{counted['wrong']} to mend.")
    else:
        put("\nNothing is wrong.")
    return 1 if counted["wrong"] else 0


async def _collect(*, attempt: bool, show: bool) -> list[Finding]:
    findings = []
    async for finding in examine(attempt=attempt):
        findings.append(finding)
        if show:
            _show(finding)
    return findings


async def examine(*, attempt: bool) -> AsyncIterator[Finding]:
    """Check everything, one finding at a time; nothing that fails stops the rest."""
    from service.cli.checks.probes import check_engine, check_service, check_store

    with _LogCapture("oncebox") as overheard:
        try:
            settings: Settings | None = load()
        except SettingsError as error:
            settings = None
            yield wrong("settings", str(error), "Correct it, or unset it to have the default.")
    if settings is None:
        return
    for finding in judge_settings(settings, overheard.last):
        yield finding
    for check in (
        check_store(settings),
        check_engine(settings, attempt=attempt),
        check_service(settings, attempt=attempt),
    ):
        async for finding in check:
            yield finding


def _show(finding: Finding) -> None:
    mark = MARKS[finding.verdict].ljust(5)
    if coloured(sys.stdout):
        mark = click.style(mark, fg=STYLES.get(finding.verdict, "bright_black"))
    put(f"{mark}  {finding.about}: {printable(finding.said)}")
    if finding.mend:
        put(f"       {printable(finding.mend)}")


class _LogCapture(logging.Handler):
    """Keeps what a logger says meanwhile, instead of showing it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._logger = logging.getLogger(name)
        self.last: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()

    def __enter__(self) -> _LogCapture:
        self._propagate = self._logger.propagate
        self._logger.propagate = False
        self._logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = self._propagate
