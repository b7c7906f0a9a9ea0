"""Environments on which a shell, or its loader, acts before the first command of its text."""

from __future__ import annotations

import re
import secrets
from collections import Counter
from dataclasses import dataclass, field

from tests.contract.fence_rig import Ended, Place, fenced

COMMAND = """echo "body ${N-none} ${BASH_ENV-none} ${ENV-none} ${LC_ALL-none} ${LD_PRELOAD-none} $- $0 $#"
echo "${SHELLOPTS-none} ${BASHOPTS-none} ${BASH_XTRACEFD-none} ${GLOBIGNORE-none} ${ONCEBOX_FENCE_0-none}"
echo err >&2
set -- /et[c]; echo "$1"
/bin/echo --environment--
env
exit 3"""
"""Prints all that it finds. No pipe: the traces of its parts come in any order."""

HERE = "@HERE@"
"""Stands for a directory of the case's own."""


@dataclass(frozen=True)
class Start:
    """An environment, and the text of the file that a shell may read first."""

    name: str
    env: dict[str, str]
    profile: str = ""


@dataclass(frozen=True)
class Outcome:
    """All that a command did: its end, what it printed up to its environment, that, and how often the file was read."""

    code: int
    printed: str
    environment: Counter[str] = field(compare=True)
    left: str = ""


def _files() -> list[Start]:
    profile = f"{HERE}/profile"
    counts = f"echo read >>{HERE}/left; export N=$((N+1))"
    texts = {
        "counts": counts,
        "hides its output": f"{counts}; exec >/dev/null",
        "logs its output": f"{counts}; exec >>{HERE}/left 2>&1",
        "exits": f"{counts}; exit 7",
        "prints": f"{counts}; echo printed; echo printed >&2",
        "traces": f"{counts}; set -x",
        "goes elsewhere": f"{counts}; cd /usr",
        "sets a trap": f"{counts}; trap 'echo bye' EXIT",
        "closes its outputs": f"{counts}; exec >&- 2>&-",
        "defines functions": f"{counts}; exit() {{ echo no; }}; read() {{ echo no; }}; printf() {{ echo no; }}",
    }
    files = [Start(f"BASH_ENV {name}", {"BASH_ENV": profile}, text) for name, text in texts.items()]
    return [
        *files,
        Start("BASH_ENV is missing", {"BASH_ENV": "/nosuch"}),
        Start("BASH_ENV with a substitution", {"BASH_ENV": f"$(echo run >>{HERE}/left; echo {profile})"}, counts),
        Start("ENV", {"ENV": profile}, counts),
        Start("ENV of a POSIX shell", {"ENV": profile, "POSIXLY_CORRECT": "1"}, counts),
    ]


def _options() -> list[Start]:
    words = (
        "xtrace",
        "verbose",
        "noexec",
        "errexit",
        "nounset",
        "noclobber",
        "noglob",
        "posix",
        "allexport",
        "keyword",
    )
    return [
        *(Start(f"SHELLOPTS {word}", {"SHELLOPTS": word}) for word in (*words, "privileged", "nonsense")),
        Start("SHELLOPTS several", {"SHELLOPTS": "xtrace:verbose:noclobber:noglob:nounset", "PS4": "> ${N-none} "}),
        *(
            Start(f"BASHOPTS {word}", {"BASHOPTS": word})
            for word in ("failglob", "nullglob:dotglob", "extdebug", "none")
        ),
        *(Start(f"tracing to {fd}", {"SHELLOPTS": "xtrace", "BASH_XTRACEFD": fd}) for fd in ("1", "2", "3", "9", "x")),
        Start("BASH_XTRACEFD alone", {"BASH_XTRACEFD": "9"}),
        *(Start(f"POSIXLY_CORRECT {word!r}", {"POSIXLY_CORRECT": word}) for word in ("", "1")),
        *(Start(f"BASH_COMPAT {word}", {"BASH_COMPAT": word}) for word in ("4.2", "999")),
        *(Start(f"SHLVL {word}", {"SHLVL": word}) for word in ("5", "999", "2000", "-3", "x")),
        Start("FUNCNEST", {"FUNCNEST": "1"}),
    ]


def _loading() -> list[Start]:
    return [
        *(Start(f"LC_ALL {word}", {"LC_ALL": word}) for word in ("xx_XX.UTF-8", "C", "POSIX", "C.UTF-8", "")),
        *(Start(f"{name} missing", {name: "xx_XX.UTF-8"}) for name in ("LANG", "LC_CTYPE", "LC_MESSAGES")),
        Start("LD_PRELOAD missing", {"LD_PRELOAD": "/nosuch.so"}),
        Start("LD_LIBRARY_PATH", {"LD_LIBRARY_PATH": "/nosuch"}),
        Start("LD_DEBUG unknown", {"LD_DEBUG": "nonsense"}),
        Start("nothing but blanks", dict.fromkeys(("BASH_ENV", "ENV", "LC_ALL", "LD_PRELOAD", "SHELLOPTS"), "")),
        Start(
            "all at once",
            {"LC_ALL": "xx", "LD_PRELOAD": "/nosuch.so", "SHELLOPTS": "xtrace", "BASH_FUNC_a%%": "() { :; }"},
        ),
    ]


def _functions() -> list[Start]:
    names = (
        *("exit", "true", "read", "eval", "set", "printf", "command", "trap", "unset", "echo", "export", "exec"),
        *("test", "[", "shift", "env", "readlink", "bash", "sh", "shopt", "kill", "builtin", ":", "grep", "ln", "rm"),
    )
    texts = [Start(f"a function {name}", {f"BASH_FUNC_{name}%%": f"() {{ /bin/echo 'my {name}'; }}"}) for name in names]
    return [
        *texts,
        Start("functions of all these names", {name: text for start in texts for name, text in start.env.items()}),
        Start("a function that is none", {"BASH_FUNC_f%%": "() { echo"}),
        Start("a function of several lines", {"BASH_FUNC_echo%%": "() {  cat <<X\na 'b' \"c\" $1\nX\n}"}),
        Start("a function as old shells export it", {"f": "() { echo f; }", "BASH_FUNC_g()": "() { echo g; }"}),
    ]


def _words() -> list[Start]:
    return [
        Start("IFS", {"IFS": "o/"}),
        Start("CDPATH", {"CDPATH": "/usr:/"}),
        Start("GLOBIGNORE", {"GLOBIGNORE": "*"}),
        Start("EXECIGNORE", {"EXECIGNORE": "*"}),
        Start("GREP_OPTIONS", {"GREP_OPTIONS": "-v"}),
        Start("PS4", {"PS4": "$(echo traced >&2)"}),
        Start("TMOUT", {"TMOUT": "1"}),
        Start("OPTIND", {"OPTIND": "7"}),
        Start("BASH_ARGV0", {"BASH_ARGV0": "other"}),
    ]


NO_PATH = [
    Start("nothing is found", {"PATH": "/nosuch"}),
    Start("nothing is found, and a locale is missing", {"PATH": "/nosuch", "LC_ALL": "xx"}),
    Start("nothing is found, and an option is set", {"PATH": "/nosuch", "SHELLOPTS": "verbose"}),
    Start("nothing is found, and a function is exported", {"PATH": "/nosuch", "BASH_FUNC_exit%%": "() { echo no; }"}),
]
"""For commands alone: a sandbox in which nothing is found can't be asked for anything."""
STARTS = [*_files(), *_options(), *_loading(), *_functions(), *_words()]


def here(start: Start, directory: str) -> dict[str, str]:
    """The environment, in a directory of its own."""
    return {name: value.replace(HERE, directory) for name, value in start.env.items()}


def prepare(place: Place, start: Start, directory: str) -> None:
    """Make what the environment names."""
    profile = start.profile.replace(HERE, directory).replace("'", "'\\''")
    place.own(f"mkdir -p {directory}; chmod 777 {directory}; printf '%s\\n' '{profile}' >{directory}/profile")


def outcome(place: Place, text: str, env: dict[str, str], directory: str) -> Outcome:
    """Run a text, and see what it did."""
    ended: Ended = place.run(text, env)
    left = place.own(f"cat {directory}/left 2>/dev/null; rm -f {directory}/left")
    printed, environment = _parts(ended.output.decode())
    logged, rest = _parts(left)
    return Outcome(ended.code, printed, Counter([*environment, *rest]), logged)


def _parts(text: str) -> tuple[str, list[str]]:
    """What was printed up to the environment, and the lines from there on, which come in any order."""
    head, _, tail = text.partition("\n--environment--\n")
    return head, [line for line in tail.splitlines() if not re.match(r"_=", line)]


def compare(place: Place, start: Start, directory: str, *, sent: bool) -> tuple[Outcome, Outcome, str]:
    """The command without a fence and behind one, and the token. ``sent``: with it, else the daemon has it."""
    prepare(place, start, directory)
    env = here(start, directory) if sent else {}
    token = secrets.token_hex(16)
    text, all_env = fenced(place, COMMAND, token, env)
    plain = outcome(place, COMMAND, env, directory)
    return plain, outcome(place, text, all_env, directory), token
