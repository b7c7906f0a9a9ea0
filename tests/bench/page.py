"""docs/benchmarks.md, written from the figures in docs/bench.json: whoever measures anew gets a new page."""

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.bench.results import DOCS

WIDTH = 118
WANTED = 500
"""Sandboxes of a full load run."""
PAGE = DOCS / "benchmarks.md"

HEAD = """# Benchmarks

Written by `make bench`, `make bench-drop` and `make load` from `docs/bench.json`; don't edit it. Every figure stands
beside a baseline that was measured in the same run, in turns with it; medians of the rounds. **Read the ratios**: the
absolute figures say as much about the machine and what else it was doing (the load average stands with each) as
about Oncebox. Everything, the load generator included, shares the cores of one machine.
"""


def write(figures: dict[str, Any]) -> None:
    """The page anew."""
    parts = [HEAD]
    for name, section in SECTIONS.items():
        if name in figures:
            text = "\n".join(map(_wrapped, section(figures[name])))
            measured = _wrapped(f"*Measured {figures[name]['measured']}; {figures[name].get('machine', '')}*")
            parts.append(f"{text}\n\n{measured}\n")
    PAGE.write_text("\n".join(parts))


def _wrapped(text: str) -> str:
    """Prose in lines that fit; tables as they are."""
    if text.lstrip().startswith("|"):
        return text
    indent = "  " if text.lstrip().startswith("- ") else ""
    filled = ("\n" + indent).join(textwrap.wrap(text.strip(), WIDTH))
    return "\n" * (len(text) - len(text.lstrip("\n"))) + filled + "\n" * (len(text) - len(text.rstrip("\n")))


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    yield "| " + " | ".join(heads) + " |"
    yield "| --- " + "| ---: " * (len(heads) - 1) + "|"
    for row in rows:
        yield "| " + " | ".join(f"{cell:,}" if isinstance(cell, int | float) else str(cell) for cell in row) + " |"


def _verdict(good: bool, said: str) -> str:
    return said if good else f"**Not reached: {said}**"


def _drop(found: dict[str, Any]) -> Iterator[str]:
    yield "## The incident (`make bench-drop`)\n"
    yield (
        f"{found['commands']} commands of {found['seconds']:g} s, {found['callers']} callers at a time, in a network "
        f"in which {found['share']:.0%} of all connections fall silent, without a reset, at some moment. For the ways "
        "through Oncebox that is so on both hops: between caller and service, and between service and engine.\n"
    )
    rows = [
        (each["way"], each["right"], each["wrong"], each["honest_error"], each["hung"], each["ran_twice"],
         f"{each['median_seconds']} s", f"{each['slowest_seconds']} s")
        for each in found["ways"]
    ]  # fmt: skip
    heads = ("way", "right, in full", "wrong", "honest error", "hung", "ran twice", "median", "slowest")
    yield from _table(heads, rows)
    yield "\nThe price is in the last column: who loses a connection learns of it by a timeout, and asks again."


def _polls(found: dict[str, Any]) -> Iterator[str]:
    yield "## Polls, replays, workers\n"
    yield (
        "A bare Starlette handler on Hypercorn as it comes, with an answer of the same size, against: a poll for news "
        "of which there is none (one read in Redis: what nearly all polls are), the fetch of a finished job with "
        "output (two reads), and the replay of a sandbox's creation. 64 connections, one process.\n"
    )
    names = (("bare", "bare handler, GET"), ("poll", "poll without news"), ("fetch", "finished job with output"),
             ("bare post", "bare handler, POST"), ("replay", "sandbox replayed"),
             ("two workers", "poll without news, two workers"))  # fmt: skip
    rows = [
        (title, *(found[name][each] for each in ("rate", "p50_ms", "p99_ms", "failed")), found[name].get("cpu_us", "-"))
        for name, title in names
    ]
    yield from _table(("", "per second", "p50, ms", "p99, ms", "failed", "server's CPU, us"), rows)
    yield (
        "\nOn a machine that is busy with other things rates say little; the server's own processor time more. In a "
        "poll without news are the looks at the two running jobs that are polled, four a second whatever the rate.\n"
    )
    poll, fetch = found["poll_to_bare"], found["fetch_to_bare"]
    said = f"poll to bare handler: {poll}, by processor time {found['poll_to_bare_cpu']} (wanted: 0.5, better 0.6)"
    yield "- " + _verdict(poll >= 0.5, said)
    yield f"- finished job to bare handler: {fetch}, by processor time {found['fetch_to_bare_cpu']}"
    yield f"- replay to bare handler: {found['replay_to_bare']}, by processor time {found['replay_to_bare_cpu']}"
    yield f"- two workers to one: {found['two_workers_to_one']}, with the load generator on the same cores"


def _submits(found: dict[str, Any]) -> Iterator[str]:
    yield "## What a submission adds\n"
    yield (
        "The engine's own background submit, called directly, takes "
        f"{found['direct_most_per_second']:,} a second at most; one replica takes {found['served_most_per_second']:,}. "
        f"In an open loop at half the engine's own rate ({found['open_loop_per_second']:,} a second):\n"
    )
    rows = [("engine directly", found["direct_p50_ms"]), ("through Oncebox", found["served_p50_ms"])]
    yield from _table(("", "p50, ms"), rows)
    added = found["added_p50_ms"]
    yield "\n- " + _verdict(added < 5, f"added p50: {added} ms (wanted: under 5 ms)")
    yield f"- at {found['idle_per_second']} a second, where nothing queues: added p50 {found['added_idle_p50_ms']} ms"
    if "exec_to_direct" in found:
        said = f"`exec` of `echo hi`, alone, to the engine's own command: {found['exec_to_direct']} (wanted: at most 3)"
        yield "- " + _verdict(found["exec_to_direct"] <= 3, f"{said}, {found['exec_p50_ms']} ms at the median")
    if found["served_most_per_second"] < found["open_loop_per_second"]:
        yield (
            "- The open loop offers more than one replica can take on these cores, so what is measured is a queue "
            "that grows, not the cost of a submission: **here we lose.** A submission is an index, a claim, a mark, a "
            "dispatch, an answer, a settlement, a confirmation and a final record, each of which is on disk or in the "
            "sandbox before the next; more replicas on more cores carry more."
        )


def _claims(found: dict[str, Any]) -> Iterator[str]:
    yield "## Claims\n"
    rows = [("claims by the store (one process)", found["claims_per_second"])]
    if "set_nx_per_second" in found:
        rows.append(("`redis-benchmark`: SET NX", found["set_nx_per_second"]))
    yield from _table((f"{found['clients']} clients, Redis with AOF", "per second"), rows)
    if "claims_to_set_nx" in found:
        yield (
            f"\nRatio {found['claims_to_set_nx']}. **Here we lose**, to a program in C that does nothing else: a claim "
            "is a script that compares and answers with what it found, sent by Python."
        )


def _following(found: dict[str, Any]) -> Iterator[str]:
    yield "## Following\n"
    yield f"{found['jobs']} running jobs on one replica, with a long poll on each, then with nobody watching.\n"
    rows = [
        (name, each["looks_per_second"], each["replica_cores"], each["redis_cores"], each["engine_cores"],
         each["replica_us_a_look"])
        for name, each in (("watched", found["watched"]), ("unwatched", found["unwatched"]))
    ]  # fmt: skip
    heads = ("", "looks/s", "replica, cores", "Redis, cores", "engine, cores", "replica, us a look")
    yield from _table(heads, rows)


def _waiters(found: dict[str, Any]) -> Iterator[str]:
    yield "## Idle waiters\n"
    yield f"{found['waiters']:,} connections on one replica that wait for jobs which say nothing.\n"
    rows = [
        (title, found[name]["kib_each"], found[name]["replica_mib"], found[name]["core_share"])
        for name, title in (("long_poll", "long polls"), ("event_stream", "event streams"))
    ]
    yield from _table(("", "KiB each", "replica, MiB", "cores"), rows)


def _growth(found: dict[str, Any]) -> Iterator[str]:
    yield "## Growth\n"
    yield (
        "Recorded jobs in Redis, against a second stack that keeps its 100, measured in turns: the rates, and the "
        "replica's processor time for each answer, which a busy machine disturbs less. Two processes of one program "
        f"differ a little for good ({_apart(found)}); the ratios say how that moves from where both have 100.\n"
    )
    kinds = ("poll", "list", "submit")
    rows = [
        (each["jobs"], *(each.get(f"{kind}_{what}", "-") for kind in kinds for what in ("rate", "ratio", "cpu_ratio")),
         each["replica_mib"], each["redis_mib"])
        for each in found["rows"]
    ]  # fmt: skip
    heads = (
        "polls/s",
        "rate",
        "CPU",
        "lists/s",
        "rate",
        "CPU",
        "submits/s",
        "rate",
        "CPU",
        "replica, MiB",
        "Redis, MiB",
    )
    yield from _table(("jobs", *heads), rows)
    worst = {
        what: min(each.get(f"{kind}_{what}", 1.0) for each in found["rows"] for kind in kinds)
        for what in ("ratio", "cpu_ratio")
    }
    most = max(each["replica_ratio"] for each in found["rows"])
    yield ""
    yield "- " + _verdict(worst["ratio"] >= 0.9, f"worst ratio of a rate: {worst['ratio']} (wanted: 0.9 and more)")
    yield f"- worst ratio of processor time: {worst['cpu_ratio']}"
    yield "- " + _verdict(most <= 1.1, f"largest ratio of a replica's memory: {most} (wanted: 1.1 and less)")


def _apart(found: dict[str, Any]) -> str:
    shown = sorted(each for name, each in found.get("apart", {}).items() if name != "replica_ratio")
    return f"here by {shown[0]} to {shown[-1]}" if shown else "here not measured"


def _fairness(found: dict[str, Any]) -> Iterator[str]:
    yield "## One tenant floods\n"
    yield (
        "A quiet tenant asks for a job's state every 50 ms and submits a job a second, alone, and while another, which "
        f"may send {' and '.join(each.replace(' = ', ' ') for each in found['noisy_may'])}, sends as much as it can "
        f"over {found['noisy_connections']} connections: {found['noisy_requests_a_second']} requests a second, most of "
        "them refused late. Two replicas, one Redis, one engine.\n"
    )
    rows = [(name, found[name]["p50_ms"], found[name]["p99_ms"]) for name in ("alone", "flooded")]
    yield from _table(("the quiet one's polls", "p50, ms", "p99, ms"), rows)
    ratio = found["p99_ratio"]
    yield "\n- " + _verdict(ratio <= 2, f"p99 flooded to alone: {ratio} (wanted: at most 2)")


def _peers(found: dict[str, Any]) -> Iterator[str]:
    yield "## Peers\n"
    yield (
        f"Submit a no-op and wait for its result, {found['at_once']} callers at once, same Redis. A job queue calls a "
        "function in a worker that is running already; Oncebox starts a process in a sandbox, behind a fence, through "
        "HTTP, and records what it printed. **As a queue for functions we lose by far**, and are not meant for it.\n"
    )
    rows = [
        (name, each.get("rate", "failed"), each.get("p50_ms", "-")) for name, each in found["rows"].items()
    ]  # fmt: skip
    yield from _table(("", "per second", "p50, ms"), rows)


def _fence(found: dict[str, Any]) -> Iterator[str]:
    yield "## The fence\n"
    yield "What a trivial command takes with and without the fence around it, by shell.\n"
    rows = [
        (name, each["without_ms"], each["with_ms"], round(each["with_ms"] - each["without_ms"], 2))
        for name, each in found["shells"].items()
    ]
    yield from _table(("shell", "without, ms", "with, ms", "added, ms"), rows)


def _load(found: dict[str, Any]) -> Iterator[str]:
    yield "## The load run (`make load`)\n"
    yield (
        f"{found['sandboxes']} sandboxes, {found['jobs']:,} jobs, {found['callers']:,} callers, {found['seconds']} s; "
        "a replica killed, one rolled, Redis restarted meanwhile.\n"
    )
    if found["sandboxes"] < WANTED:
        yield f"**Not the {WANTED} sandboxes that are wanted**: the machine was too busy with other things for that.\n"
    yield from _table(
        ("rule", "", "found"),
        [(each["rule"], "passed" if each["passed"] else "**failed**", each["found"]) for each in found["checks"]],
    )
    yield ""
    rows = [
        (each["what"], each["count"], *(f"{each[name] * 1000:,.0f} ms" for name in ("p50", "p99", "max")))
        for each in found["latencies"]
    ]
    yield from _table(("callers wait for", "count", "median", "p99", "largest"), rows)


def _files(found: dict[str, Any]) -> Iterator[str]:
    yield "## Files\n"
    yield (
        "A file sent and fetched through one replica, and by the engine's own client, on the same engine. Through "
        "Oncebox an upload goes to a temporary name, as one piece or in pieces that are put together, and is renamed: "
        "it takes its name only when it is whole.\n"
    )
    transfers = found["transfers"]
    rows = [
        (
            name,
            each["up_s"],
            each["own_up_s"],
            each["up_to_own"],
            each["down_s"],
            each["own_down_s"],
            each["down_to_own"],
        )
        for name, each in transfers.items()
    ]
    heads = ("", "up, s", "own client, s", "rate to own", "down, s", "own client, s", "rate to own")
    yield from _table(heads, rows)
    worst = min(min(each["up_to_own"], each["down_to_own"]) for each in transfers.values())
    yield "\n- " + _verdict(worst >= 0.6, f"slowest to the engine's own client: {worst} (wanted: 0.6)")
    archive = found["archive"]
    said = (
        f"{archive['files']} files of {archive['bytes'] // archive['files']:,} bytes by one archive: "
        f"{archive['archive_s']} s, {archive['to_single']} times one file of their size (wanted: at most 3)"
    )
    yield "- " + _verdict(archive["to_single"] <= 3, said)


SECTIONS: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "drop": _drop,
    "load": _load,
    "polls": _polls,
    "submits": _submits,
    "claims": _claims,
    "following": _following,
    "waiters": _waiters,
    "growth": _growth,
    "fairness": _fairness,
    "peers": _peers,
    "files": _files,
    "fence": _fence,
}
