"""The fence: shell texts that run a command once in its sandbox, and readers of what they print. No I/O here.

A fence is the file ``<directory>/<token>`` in the sandbox. Whoever makes it first decides for good: the
wrapper makes it before it starts the caller's command (a **run**), the reconciler makes it so that the
command never starts (a **void**). Five rules make that hold; ``tests/unit/core/jobs/test_job_protocol.py``
explores them:

1. The attempt, and so the token, goes up only past a void (the claim table's business).
2. A void counts only in the file system that was there at dispatch: the directory's **boot mark** tells.
3. The wrapper compares the boot mark first and runs nothing where it differs.
4. Nothing is sent without an acknowledged claim (the claim table's business).
5. Where there is a mark, there is a fence or no run.

The texts are POSIX sh and work in bash, dash and busybox. All but the wrapper's write the token with ``''``
in its middle, and look for it by a pattern: their own command lines must not be taken for the run's.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from service.core.fence import scripts, startup
from service.messages import MAX_JOB_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

COMMAND_VARIABLE = "ONCEBOX_COMMAND"
"""Carries the caller's command to the wrapper."""

SCRIPT_VARIABLE = "ONCEBOX_FENCE"
"""Carries the wrapper's script, so that a status read, which repeats the text, stays short.

It is the script's only scratch variable as well (the rest are positional parameters): any other name could be
one that the caller exports, and would reach the caller's command changed.

With a number behind it, it carries a startup variable, ``name=value``.
"""


NOTHING_RAN = 113
"""The exit code of a wrapper that ran nothing. It opens a question where the marker could not be written (a full disk),
and proves nothing: a command may end with it too.
"""

MESSAGE_LIFETIME = 3600
"""Seconds after which no copy of a submission can still arrive; far above every deadline on its way."""

INPUT_LIFETIME = MAX_JOB_TIMEOUT + 2 * MESSAGE_LIFETIME
"""Seconds after which no attempt can follow that would read an input that was written then: a void is met, or a job is
lost, by its deadline and a grace.
"""

_RESERVED = re.compile(f"{SCRIPT_VARIABLE}(_[0-9]+)?")
_TOKEN = re.compile(r"[0-9a-f]{32}")
_SHOWN = 4096
"""Bytes of a fence that a text prints. An honest one has some 200."""


class Boot(msgspec.Struct, frozen=True):
    """A boot mark: ``text`` is the file's one line, ``start`` when the container's first process started.

    ``start`` is field 22 of ``/proc/1/stat`` (clock ticks since the machine's boot) when the mark was made;
    0: not known. A container that came back with its file system kept has a later one than its mark says.
    """

    text: str
    start: int

    def replaced_by(self, start: int) -> bool:
        """Whether a first process that started at ``start`` is surely another one. 0 proves nothing."""
        return 0 not in (self.start, start) and self.start != start


class Ready(msgspec.Struct, frozen=True):
    """What `ready` printed. ``boot`` is None where no mark can be made: commands run unfenced there."""

    boot: Boot | None
    start: int


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """A fence's content.

    ``empty``: started, details to come or never. ``damaged``: a full disk or a job made it unreadable; an
    exit code in it is this run's all the same, since its wrapper alone writes one under this token.
    """

    kind: Literal["run", "void", "empty", "damaged"]
    fingerprint: str | None = None
    timeout: int | None = None
    pid: int | None = None
    log: str | None = None
    """Where the output goes: a background command's merged one, ``.stdout`` of a foreground one."""
    apart: bool = False
    """A background command whose stderr is in a file of its own (`stderr_beside`); the log has its stdout alone."""
    exit_code: int | None = None
    boot: str | None = None
    """Of a void: the text of the mark that it was made under (rule 2)."""


class Marker(msgspec.Struct, frozen=True):
    """A wrapper that ran nothing, and what it met.

    ``run``: the fence of another copy (``fingerprint`` is None where it can't be read, or not yet). ``void``.
    ``boot``: another boot mark (rule 3). ``none``: no fence could be made (rule 5). ``input``, ``apart``: before it
    made a fence, it could not open the file with the command's input, or one for its stderr.
    """

    met: Literal["run", "void", "boot", "none", "input", "apart"]
    fingerprint: str | None = None


class Voided(msgspec.Struct, frozen=True):
    """What `void` did.

    ``voided``: now or before. ``run``: ``fence`` was there. ``boot``: another mark than the one asked for, or
    none (``boot`` and ``start`` are the present ones). ``error``: nothing is known, try again.
    """

    outcome: Literal["voided", "run", "boot", "error"]
    boot: Boot | None = None
    start: int = 0
    fence: Fence | None = None


class Look(msgspec.Struct, frozen=True):
    """What `look` saw. ``processes`` carry the token; None: command lines can't be read (no ``/proc``)."""

    boot: Boot | None
    start: int
    processes: tuple[int, ...] | None
    fence: Fence | None

    @property
    def alive(self) -> bool | None:
        """Whether the run's wrapper lives; None: can't be told."""
        return None if self.processes is None else bool(self.processes)


End = Literal["gone", "ended", "not_ours", "error"]
"""``gone``: no process carries the token. ``not_ours``: nor does the one that has the noted pid now."""


def reserved(name: str) -> bool:
    """Whether a caller's own environment can't use a name: these are unset before the caller's command starts."""
    return name == COMMAND_VARIABLE or _RESERVED.fullmatch(name) is not None


def boot_path(directory: str) -> str:
    """The boot mark's file (`parse_boot`): one ranged read tells the mark, and that the daemon is alive."""
    return f"{_directory(directory)}/boot"


def fence_path(directory: str, token: str) -> str:
    """The fence's file (`parse_fence`)."""
    return f"{_directory(directory)}/{_token(token)}"


def input_path(directory: str, random: str) -> str:
    """A file for a command's input, beside its fence. ``random``: 32 hex digits, new for each upload: a late copy of
    an upload must not write to a file that a command reads.
    """
    return f"{_directory(directory)}/.in.{_token(random)}"


def stderr_beside(log: str) -> str:
    """Where the stderr of a background command is, apart from its log."""
    return log.removesuffix(".output") + ".stderr"


# -- the wrapper


class Streams(msgspec.Struct, frozen=True, kw_only=True):
    """What the wrapper opens for a command, before it makes the fence."""

    stdin: str | None = None
    """A file: absolute, or relative to the command's directory. None: there is no input."""
    apart: bool = False
    """A background command's stderr goes into a file beside its log."""


MERGED = Streams()
"""No input, one log."""


def wrapper(
    command: str,
    env: Mapping[str, str],
    *,
    directory: str,
    token: str,
    fingerprint: str,
    boot: str | None,
    timeout: int,
    inherited: Mapping[str, str] | None = None,
    words: bool = False,
    streams: Streams = MERGED,
) -> tuple[str, dict[str, str]]:
    """What to send to execd so that ``command`` runs once under ``token``: the text, and the environment.

    ``boot`` is the mark's text as read before the dispatch; None (no mark can be made) runs the command
    without a fence, and nothing at all where there is a mark by then. ``timeout`` (seconds) is noted for
    whoever finds the job by its fence. ``inherited``: the daemon's own startup variables, which ``env`` overrides.
    ``words``: the command is a list of quoted words, run without a shell of its own.
    The exit code is the command's, 128 + n for signal n. Where nothing was run it is `NOTHING_RAN`, and the marker is
    printed (`parse_marker`).
    """
    kept = startup.acting({**(inherited or {}), **env})
    carriers = {f"{SCRIPT_VARIABLE}_{number}": f"{name}={kept[name]}" for number, name in enumerate(kept)}
    settable = [f'"${carrier}"' for carrier, name in zip(carriers, kept, strict=True) if startup.settable(name)]
    run = _run_words(kept) if words else _run(kept)
    script = _filled(
        _script(run, streams, fenced=boot is not None),
        FENCE=shlex.quote(fence_path(directory, token)),
        BOOT=shlex.quote(boot or ""),
        FINGERPRINT=shlex.quote(fingerprint),
        TIMEOUT=str(timeout),
        NOTHING=str(NOTHING_RAN),
        CARRIERS=" ".join(carriers),
        KEPT=" ".join(f'"${name}"' for name in carriers),
        EXPORT=f"export {' '.join(settable)}" if settable else ":",
        INPUT=shlex.quote(streams.stdin or ""),
        APART="apart=stderr\\n" if streams.apart else "",
    )
    sent = {**env, **dict.fromkeys(kept, ""), **carriers, COMMAND_VARIABLE: command, SCRIPT_VARIABLE: script}
    # The token is in the text: a status read shows it, and the process's command line carries it.
    return f': {_token(token)};eval "${{{SCRIPT_VARIABLE}:?}}"', sent


def _script(run: str, streams: Streams, *, fenced: bool) -> str:
    """The wrapper's parts, in their order."""
    make, note = (scripts.MAKE + scripts.COMPARE + scripts.FILL, scripts.NOTE) if fenced else ("", "")
    aside = "" if streams.apart or streams.stdin is not None else scripts.ASIDE
    inner = f"{make}{scripts.PREPARE}{aside}{run}{note}exit $2\n"
    if streams.stdin is not None:
        inner = scripts.OPEN_INPUT.replace("@INNER@", inner)
    if streams.apart:
        inner = scripts.OPEN_APART.replace("@INNER@", inner.replace("@UNDO@", scripts.UNDO_APART))
    elif streams.stdin is not None:
        inner = scripts.ASIDE + inner
    return f"{scripts.BEGIN}{scripts.COMPARE}{inner}".replace("@UNDO@", "")


def _run(kept: Mapping[str, str]) -> str:
    """How the caller's shell is started: with these startup variables."""
    if not kept:
        return scripts.RUN
    return scripts.RUN_EXPORTED if all(map(startup.settable_in_bash, kept)) else scripts.RUN_WITH_ENV


def _run_words(kept: Mapping[str, str]) -> str:
    """How a program is started without a shell."""
    return scripts.RUN_WORDS if all(map(startup.settable_in_bash, kept)) else scripts.RUN_WORDS_WITH_ENV


# -- our own small commands


def ready(directory: str, random: str) -> str:
    """Make the boot mark where there is none; print it (rule 2). ``random``: 32 hex digits, new each time."""
    return _text(scripts.READY, directory, random=random)


def void(directory: str, token: str, boot: str, random: str) -> str:
    """Make the fence as a void, content and all in one atomic step, where the mark is ``boot`` (rule 2).

    One that dies half-way leaves a temporary file that counts for nothing. ``random`` as in `ready`.
    """
    return _text(scripts.VOID, directory, token, random, BOOT=shlex.quote(boot), VOID=shlex.quote(f"void {boot}"))


def look(directory: str, token: str) -> str:
    """Print the fence, the mark, and which processes carry the token in their command line."""
    return _text(scripts.LOOK, directory, token)


def end(directory: str, token: str) -> str:
    """End the run's process group; takes up to 5 s. Only processes that carry the token now are touched."""
    return _text(scripts.END, directory, token)


def clean(directory: str, tokens: Sequence[str], *, age: int, outputs: Sequence[str] = ()) -> str:
    """Remove fences, and the outputs that they name, not written to for ``age`` seconds (`parse_clean`).

    ``tokens`` are attempts of jobs whose final record is written, voided attempts before them included;
    ``outputs`` further absolute paths of theirs. A run whose process lives is left alone; everything is,
    where that can't be told. Inputs that no attempt can need any more go by their age alone: who reads one has it open.

    There is no race with a late arrival. A copy that came after the removal would run, but none can be under
    way: every hop has a deadline of minutes, and a fence's last write, which comes after its submission was
    sent, is at least `MESSAGE_LIFETIME` ago (``age`` is raised to that).
    """
    if not all(path.startswith("/") for path in outputs):
        raise ValueError("outputs are absolute paths")
    return _text(
        scripts.CLEAN,
        directory,
        TOKENS=" ".join(map(_broken, tokens)) or "''",
        MINUTES=str(-(-max(age, MESSAGE_LIFETIME) // 60)),
        INPUT_MINUTES=str(-(-max(age, INPUT_LIFETIME) // 60)),
        OUTPUTS=" ".join(map(shlex.quote, outputs)),
    )


def _text(text: str, directory: str, token: str = "0" * 32, random: str = "0" * 32, **values: str) -> str:
    return _filled(
        scripts.HEAD + text,
        DIRECTORY=shlex.quote(_directory(directory)),
        TOKEN=_broken(token),
        PATTERN=f"{token[:-1]}[{token[-1]}]",
        RANDOM=_token(random),
        SHOWN=str(_SHOWN),
        **values,
    )


def _filled(text: str, **values: str) -> str:
    filled = re.sub(r"@([A-Z_]+)@", lambda match: values[match[1]], text)
    return re.sub(r"\n{2,}", "\n", filled).strip()


def _directory(directory: str) -> str:
    if not directory.startswith("/") or "\0" in directory:
        raise ValueError("the fence directory is an absolute path")
    return directory.rstrip("/")


def _token(token: str) -> str:
    if not _TOKEN.fullmatch(token):
        raise ValueError("a token is 32 hex digits")
    return token


def _broken(token: str) -> str:
    return f"{_token(token)[:16]}''{token[16:]}"


# -- the readers


def parse_boot(data: bytes) -> Boot | None:
    """The boot file's content; None where that is no mark (empty, several lines, not ASCII, too long)."""
    text = data.removesuffix(b"\n").decode("ascii", "replace").strip(" \t")
    if not text or len(text) > 200 or not (text.isascii() and text.isprintable()):
        return None
    return Boot(text, _number(text.rpartition(" ")[2]) or 0)


def parse_ready(text: str) -> Ready:
    """What `ready` printed."""
    return Ready(*_mark(_tagged(text)))


def parse_fence(data: bytes) -> Fence:
    """A fence's content. Of a tag the first line counts, if it is whole: a full disk cuts the last one."""
    whole = data[: data.rfind(b"\n") + 1].decode("utf-8", "replace")
    first, _, rest = whole.partition("\n")
    tags = _tagged(whole)
    if first.startswith("void ") and not rest:
        return Fence(kind="void", boot=first.removeprefix("void "))
    if first.startswith("fp="):
        return Fence(
            kind="run",
            fingerprint=tags["fp"],
            timeout=_number(tags.get("timeout")),
            pid=_number(tags.get("pid")),
            log=_path(tags.get("log")),
            apart=tags.get("apart") == "stderr",
            exit_code=_number(tags.get("exit")),
        )
    if not whole and (not data or data[:3] == b"fp="[: len(data)]):
        return Fence(kind="empty")
    return Fence(kind="damaged", exit_code=_number(tags.get("exit")))


def names_marker(output: bytes, token: str) -> bool:
    """Whether a marker with our token, or what a full disk left of one, stands anywhere in ``output``."""
    return b"oncebox-fence %b" % _token(token).encode() in output


def parse_marker(output: bytes, token: str) -> Marker | None:
    """The marker, where it is the **whole** output and carries our token.

    It is a hint, never a proof: a caller's command can learn its token (it stands in its parent's command line) and
    print this very line. Whoever acts on it has looked at the fence first.
    """
    line = re.fullmatch(rb"oncebox-fence %b ([^\n]*)\n" % _token(token).encode(), output)
    if line is None:
        return None
    met = line[1].decode("utf-8", "replace")
    for alone in ("boot", "none", "input", "apart"):
        if met == alone:
            return Marker(alone)
    if met.startswith("void "):
        return Marker("void")
    return Marker("run", met.removeprefix("fp=") if met.startswith("fp=") else None)


def parse_void(text: str) -> Voided:
    """What `void` printed; ``error`` where it did not get to its end."""
    tags = _tagged(text)
    boot, start = _mark(tags)
    fence = _shown(text)
    match tags.get("void"):
        case "voided":
            return Voided("voided", boot, start)
        case "boot":
            return Voided("boot", boot, start)
        case "run" if fence is not None and fence.kind != "void":  # a void of another mark counts for nothing
            return Voided("run", boot, start, fence)
    return Voided("error", boot, start)


def parse_look(text: str) -> Look:
    """What `look` printed."""
    tags = _tagged(text)
    boot, start = _mark(tags)
    found = tags.get("found")
    pids = None if found is None else tuple(int(pid) for pid in found.split() if re.fullmatch(r"[0-9]{1,10}", pid))
    return Look(boot, start, pids, _shown(text))


def parse_end(text: str) -> End:
    """What `end` printed; ``error`` where it did not get to its end, or could not tell whose a process is."""
    said = _tagged(text).get("end")
    return next((end for end in get_args(End) if end == said), "error")


def parse_clean(text: str) -> list[str]:
    """The tokens whose fences `clean` removed."""
    lines = (line.partition("=") for line in text.splitlines())
    return [token for tag, _, token in lines if tag == "cleaned" and _TOKEN.fullmatch(token)]


def _tagged(text: str) -> dict[str, str]:
    """Tag -> value of the first line with that tag, up to where a fence is shown."""
    tags: dict[str, str] = {}
    for line in text.partition("\nfence:\n")[0].split("\n"):
        tag, equals, value = line.partition("=")
        if equals:
            tags.setdefault(tag, value)
    return tags


def _shown(text: str) -> Fence | None:
    """The fence behind its heading. A full stop ends it: the last line end of what execd passes on is lost."""
    _, shown, content = text.partition("\nfence:\n")
    content, stop, _ = content.rpartition(".")
    return parse_fence(content.encode()) if shown and stop else None


def _mark(tags: Mapping[str, str]) -> tuple[Boot | None, int]:
    return parse_boot(tags.get("boot", "").encode()), _number(tags.get("start")) or 0


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,18}", text) else None


def _path(text: str | None) -> str | None:
    return text if text is not None and text.startswith("/") else None
