"""Commands that a wrapper could easily change, to be run with and without the fence."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """One command, and what is done to it. Times are seconds."""

    name: str
    command: str
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    timeout: float | None = None
    interrupt: float | None = None
    """When to interrupt it, counted from its first output."""
    settle: float = 0.0
    """How long to wait for output after the end."""


def _ends() -> list[Case]:
    signals = [
        Case(f"kills itself by {name}", f"echo a; kill -{name} $$; sleep 5")
        for name in ("KILL", "TERM", "INT", "HUP", "QUIT", "SEGV", "ABRT", "USR1", "PIPE", "ALRM")
    ]
    return [
        Case("plain", "echo hi"),
        *(Case(f"exit {code}", f"echo a; exit {code}") for code in (0, 3, 137, 143, 255, 256, 300)),
        Case("exit -1", "exit -1"),
        *signals,
        Case("a child is killed", "sh -c 'kill -9 $$'; echo rc $?"),
        Case("a child is terminated", "sh -c 'kill -TERM $$'; echo rc $?"),
        Case("its last command is killed", "sh -c 'kill -9 $$'"),
        Case("TERM to its group", "echo a; kill -TERM 0; sleep 5"),
        Case("KILL to its group", "echo a; kill -9 0; sleep 5"),
        Case("USR1 to its group", "echo a; kill -USR1 0; sleep 5"),
        Case("set -e", "set -e; echo a; false; echo no"),
        Case("set -u", "set -u; echo a; echo $nosuch; echo no"),
        Case("exec", "exec sleep 0.1"),
        Case("exec of what is not there", "exec nosuchcommand; echo no"),
        Case("exec of a shell", "exec sh -c 'echo a; exit 4'"),
        Case("a trap at exit", "trap 'echo bye' EXIT; echo a; exit 5"),
        Case("a trap at exit changes the code", "trap 'exit 9' EXIT; exit 5"),
        Case("syntax error", "if then"),
        Case("an open quote", "echo 'a"),
        Case("an open brace", "echo a; { echo b"),
        Case("closes more than it opened", "echo a; } ; echo b"),
        Case("not found", "nosuchcommand"),
        Case("a failing redirection", "echo a >/nosuch/file; echo rc $?; : >/nosuch/file; echo no"),
        Case("return outside of a function", "return 3; echo no"),
        Case("bad substitution", "echo ${a b}; echo no"),
    ]


def _texts() -> list[Case]:
    return [
        Case("quotes", 'echo "a\'b" \'c"d\' `echo e` $(echo f) \\\\ "$(printf \'%s\' "g h")"'),
        Case("its own parameters", 'echo "$0" "$#" "$@" "$*" "$-" "$!"'),
        Case("several lines", "for i in 1 2; do\n echo $i\ndone\n# comment\ncat <<'X'\nheredoc $HOME \\\nX\n"),
        Case("a here document at the end", "cat <<X\na\nX"),
        Case("carriage returns", "echo a\r\necho b\r\n"),
        Case("a backslash at the end", "echo a\\"),
        Case("unicode", "echo 'žluťoučký kůň 🐎 \u202e'; printf 'é' | wc -c"),
        Case("percent and backslash", "printf '%s\\n' '%s%d' '\\n' '\\\\' 100%"),
        Case("tabs and blanks", "echo '\ta  b'\t; \n\n   echo \"  c\"   "),
        Case("blanks alone", "   "),
        Case("a comment alone", "# nothing"),
        Case("globs", "cd / && echo /et[c] '*' \\*"),
        Case("begins with a dash", "-x"),
        Case("two dashes", "-- echo a"),
        Case("looks like a marker", "echo oncebox-fence 00000000000000000000000000000000 fp=1"),
        Case("looks like a template", "echo @FENCE@ @BOOT@ @TOKEN@ %s {0}"),
        Case("functions and aliases", "f() { echo \"f $1\"; }; f x; alias g='echo g'; g"),
        Case("bash alone", "[[ a == a ]] && echo yes; echo ${BASH_VERSION:+bash}; a=(1 2); echo ${a[1]}"),
        Case("line numbers", "echo $LINENO\necho $LINENO\nnosuch"),
        Case("90 kB", "# " + "x" * 90_000 + "\necho ok"),
        Case("96 KiB of quotes", ": '" + '"`$\\' * 24_000 + "'; echo ok"),
        Case("96 KiB in all", "echo ok #" + "x" * (96 * 1024 - 9)),
        Case("eval", "eval 'echo a; exit 6'"),
    ]


def _streams() -> list[Case]:
    return [
        Case("order of its two outputs", "echo a; echo b >&2; echo c; echo d >&2"),
        Case("no newline at the end", "printf x"),
        Case("NUL and other bytes", "printf 'a\\000b\\377\\200\\r\\033[0m'"),
        Case("reads its input", "cat; read x; echo rc $?; ls -l /proc/self/fd/0 | grep -o '/dev/null$'"),
        Case("a shell that reads its input", "sh; echo rc $?"),
        Case("closes its output", "exec 1>&-; echo a; echo rc $? >&2"),
        Case("moves its outputs", "exec 3>&1 1>&2 2>&3; echo a; echo b >&2"),
        Case("uses descriptors 3 to 9", "exec 3>&1 9>&1; echo a >&3; echo b >&9; echo c >&4; echo rc $?"),
        Case("writes to its log's path", "echo a >/proc/self/fd/1; echo b >>/proc/self/fd/1"),
        Case("much output", "i=0; while [ $i -lt 20000 ]; do echo line $i; i=$((i+1)); done"),
        Case("a broken pipe", "yes | head -n 1; echo rc $?"),
        Case("descriptors", "for i in 0 1 2 3 4 5 6 7 8 9; do [ -e /proc/self/fd/$i ] && echo $i; done"),
        Case("its shell's descriptors", "for i in 0 1 2 3 4 5 6; do [ -e /proc/$$/fd/$i ] && echo $i; done"),
    ]


def _surroundings() -> list[Case]:
    letters = {name: f"caller's {name}" for name in "abcdefghijklmnopqrstuvwxyz"}
    return [
        Case("environment", "env | grep -v '^_=' | sort", {"FOO": "b\"a $r\n'", "EMPTY": "", "ŽLUŤ": "1"}),
        Case("short names", "env | grep -v '^_=' | sort; echo $f $l $s", letters),
        Case("our names", 'env | grep ONCEBOX; echo "${ONCEBOX_COMMAND-x}${ONCEBOX_FENCE-y}"'),
        Case("unexported variables", "set | grep -i -e oncebox -e '/fence' | grep -v -e '^_=' -e EXECUTION_STRING"),
        Case("a PATH without anything", "echo $PATH; ls 2>/dev/null; echo rc $?", {"PATH": "/nosuch"}),
        Case("IFS", 'printf "%s" "$IFS" | od -c; a=a:b; echo $a', {"IFS": ":"}),
        Case("shell level", "echo $SHLVL"),
        Case("shell level set", "echo $SHLVL", {"SHLVL": "4"}),
        Case("a file that bash reads first", "echo body; echo $BASH_ENV", {"BASH_ENV": "/dev/null"}),
        Case(
            "a function from outside",
            "type f >/dev/null && f; env | grep -c BASH_FUNC",
            {"BASH_FUNC_f%%": "() { echo f; }"},
        ),
        Case("directory", "pwd; echo $PWD", cwd="/usr/lib"),
        Case("traps", "trap; grep Sig[BIC] /proc/self/status"),
        Case("ignored signals of a child", "sh -c 'trap; grep SigIgn /proc/self/status'"),
        Case("umask and options", "umask; set -o | grep -e noclobber -e errexit -e monitor -e noglob"),
        Case("limits", "ulimit -a"),
        Case("overwrites a file", "f=$(mktemp); echo a >$f; echo b >$f; cat $f; rm $f"),
        Case("session and terminal", "tty; echo rc $?; [ -t 0 ] || echo none"),
        Case("user", "id"),
        Case("jobs", "jobs; wait; echo rc $?"),
        Case("job control", "set -m; sleep 0.1 & wait $!; echo rc $?"),
    ]


def _processes() -> list[Case]:
    late = "sh -c 'sleep 0.4; echo late' & sleep 0.1; echo early"
    slow = "trap 'sleep 0.5; echo bye; exit 5' TERM; echo a; while :; do sleep .05; done"
    return [
        Case("a child in the background", "(sleep 0.5; echo late) & echo early", settle=0.8),
        Case("a child in a session of its own", f"setsid {late}", settle=0.8),
        Case("a child that ignores HUP", f"nohup {late}", settle=0.8),
        Case("waits for a child", "sleep 0.1 & wait; echo done"),
        Case("a child that ends later holds the output", "sleep 0.3 & exit 2", settle=0.4),
        Case("timeout", "echo a; sleep 600", timeout=1.5),
        Case("timeout with TERM ignored", "trap '' TERM; echo a; sleep 600", timeout=1.5),
        Case("timeout with a child", "sleep 600 & echo a; sleep 600", timeout=1.5),
        Case("interrupt", "echo a; sleep 600", interrupt=0.3),
        Case("interrupt of a child", "echo a; sleep 600; echo rc $?", interrupt=0.3),
        Case(
            "interrupt trapped",
            "trap 'echo bye; exit 5' TERM; echo a; while :; do sleep .05; done",
            interrupt=0.3,
        ),
        Case("interrupt trapped and slow", slow, interrupt=0.3),
        Case("interrupt ignored", "trap '' TERM; echo a; sleep 600", interrupt=0.3),
        Case("a pipeline", "echo a | tr a b | cat; (exit 3) | true; echo rc $?"),
    ]


CASES = [*_ends(), *_texts(), *_streams(), *_surroundings(), *_processes()]

DIFFERENT = {
    "a group's leader": "[ $(cut -d' ' -f5 /proc/$$/stat) -eq $$ ] && echo leader || echo not",
    "kills the group by its own number": "kill -s TERM -- -$$ 2>/dev/null; echo rc $?",
}
"""What a fence does change: the shell that runs the command is a child of the group's leader."""

WORDS: list[list[str]] = [
    [],
    [""],
    ["", "", "a", ""],
    ["a b", "  ", "\t", "\n", "a\nb\n"],
    ["'", '"', "'\"'", "\\", "\\'", "`id`", "$(id)", "$HOME", "${HOME}", "$$", "$", "!", "!!"],
    ["*", "/et[c]", "?", "{a,b}", "~", "~root", "#", "# a", ";", "&", "|", "<", ">", "2>&1", "&&", "(", ")"],
    ["-n", "--", "-c", "--help", "a=b", "%s", "\\n", "@FENCE@", "@INPUT@", "oncebox-fence"],
    ["žluťoučký kůň 🐎", "\u202e", "\x01\x7f\x1b[0m", "a\r"],
    ["x" * 60_000, "y"],
    ["'" * 18_000],
    [str(number) for number in range(3000)],
]
"""Arguments that a shell would change."""
