"""The report of a run: one HTML file that needs nothing else, and the same as JSON."""

import dataclasses
import html
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.load import charts
from tests.load.callers import Callers
from tests.load.recording import Journal
from tests.load.sampling import WINDOW, Sampler
from tests.load.verdict import ENGINE_LIMIT, Check, latencies

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 900px; margin: 2em auto; padding: 0 1em; color: #222 }
h1 { font-size: 1.5em } h2 { font-size: 1.1em; margin-top: 2em }
table { border-collapse: collapse } td, th { padding: .2em .8em .2em 0; text-align: left; vertical-align: top }
td.number { text-align: right; font-variant-numeric: tabular-nums }
.passed { color: #3a7d0a } .failed { color: #c00; font-weight: bold }
svg { width: 100%; font: 11px system-ui, sans-serif } svg text { fill: #555 } .grid { stroke: #e4e4e4 }
.mark { stroke: #999; stroke-dasharray: 3 3; stroke-width: 2 } line.limit { stroke: #c00 } text.limit { fill: #c00 }
p.note { color: #666 }
"""
MOST_DOTS = 6000
MEGABYTE = 1024 * 1024


def as_json(title: str, facts: dict[str, Any], found: Sequence[Check], journal: Journal, callers: Callers) -> str:
    """The figures without the curves."""
    whole = {
        "title": title,
        **facts,
        "passed": all(check.passed for check in found),
        "checks": [dataclasses.asdict(check) for check in found],
        "latencies": [
            {"what": name, "count": count, "p50": p50, "p99": p99, "max": most}
            for name, count, p50, p99, most in latencies(journal, callers)
        ],
        "answers": answers(journal),
        "events": [{"at": round(at, 1), "what": what} for at, what in journal.events],
    }
    return json.dumps(whole, indent=2) + "\n"


def answers(journal: Journal) -> dict[str, dict[str, int]]:
    """How often each status came, by kind of caller; `no answer`: the connection broke."""
    found: dict[str, Counter[str]] = {}
    for each in journal.exchanges:
        found.setdefault(each.who, Counter())[str(each.status or "no answer")] += 1
    return {who: dict(sorted(counts.items())) for who, counts in sorted(found.items())}


def page(
    title: str, facts: dict[str, Any], found: Sequence[Check], journal: Journal, callers: Callers, sampler: Sampler
) -> str:
    """The HTML."""
    passed = all(check.passed for check in found)
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{STYLE}</style>",
        f"<h1>{html.escape(title)}: <span class={'passed' if passed else 'failed'}>",
        f"{'passed' if passed else 'not passed'}</span></h1>",
        _table(["", ""], [[html.escape(name), html.escape(str(value))] for name, value in facts.items()]),
        "<h2>Rules</h2>",
        _table(["rule", "", "found"], [_row(check) for check in found]),
        *_curves(journal, callers, sampler),
        "<h2>What was done to the stack</h2>",
        _table(["at", ""], [[f"{at:.1f} s", html.escape(what)] for at, what in journal.events]),
    ]
    return "\n".join(parts) + "\n"


def _curves(journal: Journal, callers: Callers, sampler: Sampler) -> list[str]:
    marks = [(begin, what) for begin, _, what in journal.windows]
    samples = sampler.samples
    states = {name: [(s.at, float(s.states.get(name, 0))) for s in samples] for name in ("over", "running", "to come")}
    rates = {"status": sampler.rates("status"), "output": sampler.rates("outputs", "log")}
    names = list(samples[-1].memory) if samples else []
    memory = {name: [(s.at, s.memory.get(name, 0) / MEGABYTE) for s in samples] for name in names}
    return [
        "<h2>Jobs, as their callers see them</h2>",
        charts.lines(states, unit="jobs", marks=marks, stacked=True),
        f"<h2>What the engine is asked, a second (mean of the last {WINDOW:.0f} s)</h2>",
        charts.lines(rates, unit="requests a second", marks=marks, limit=ENGINE_LIMIT * callers.plan.scale),
        "<h2>How long callers wait</h2>",
        _latency_table(journal, callers),
        "<h2>Every request but long polls (red: an error, or no answer)</h2>",
        _dots(journal, marks),
        "<h2>Memory of each process</h2>",
        charts.lines(memory, unit="MiB resident", marks=marks),
        "<h2>Load average of the machine</h2>",
        charts.lines({"1 min": [(s.at, s.load) for s in samples]}, unit="processes", marks=marks),
        "<h2>Answers</h2>",
        _table(["callers", "answers"], [[who, html.escape(str(counts))] for who, counts in answers(journal).items()]),
    ]


def _dots(journal: Journal, marks: list[tuple[float, str]]) -> str:
    shown = [each for each in journal.exchanges if each.kind != "long poll" or not 200 <= each.status < 300]
    good = [(each.at, each.seconds) for each in shown if 200 <= each.status < 300]
    bad = [(each.at, each.seconds) for each in shown if not 200 <= each.status < 300]
    step = max(1, len(good) // MOST_DOTS)
    return charts.dots(good[::step], bad[:MOST_DOTS], unit="seconds", marks=marks)


def _latency_table(journal: Journal, callers: Callers) -> str:
    rows = [
        [html.escape(name), *(f"<td class=number>{value}" for value in (count, *map(_seconds, times)))]
        for name, count, *times in latencies(journal, callers)
    ]
    return _table(["", "count", "median", "p99", "largest"], rows)


def _seconds(value: float) -> str:
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _row(check: Check) -> list[str]:
    verdict = "<span class=passed>passed</span>" if check.passed else "<span class=failed>failed</span>"
    return [html.escape(check.rule), verdict, html.escape(check.found)]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{each}" for each in heads)
    body = "".join("<tr>" + "".join(cell if cell.startswith("<td") else f"<td>{cell}" for cell in row) for row in rows)
    return f"<table><tr>{head}{body}</table>"
