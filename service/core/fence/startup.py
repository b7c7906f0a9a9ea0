"""Startup variables: what a shell, or the loader before it, acts on before the first command of its text. No I/O here.

Left alone, they would act on the wrapper as well as on the caller's shell: a ``BASH_ENV`` file would run twice, a
missing locale be complained of twice, an exported function ``exit`` would end the wrapper with another code. So they
are sent blank, which none of them acts on, and the wrapper hands them to the caller's shell as they were
(`service.core.fence.protocol.wrapper`).

A sandbox's daemon has variables of its own, which its commands inherit: `of_daemon` and `of_file` find the startup
variables among them. A value that is not UTF-8 can't be sent, so it is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

ENVIRONMENT = "/proc/self/environ"
"""What the daemon was started with, as a path of its own file calls."""
FILE_VARIABLE = "EXECD_ENVS"
"""Names a file whose lines execd adds to that, read anew for each command."""

_NAMES = frozenset(
    {
        "BASHOPTS",
        "BASH_COMPAT",
        "BASH_ENV",
        "BASH_XTRACEFD",
        "ENV",
        "EXECIGNORE",
        "FUNCNEST",
        "GLIBC_TUNABLES",
        "GLOBIGNORE",
        "GREP_OPTIONS",
        "LC_ALL",
        "SHELLOPTS",
    }
)
_PREFIXES = ("BASH_FUNC_", "__BASH_FUNC<", "LD_")
"""Exported functions, as bash and as its makers for some systems name them; the loader's variables."""
_OPTIONS = frozenset({"BASHOPTS", "SHELLOPTS"})
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$(?:\{([^}]*)\}|([A-Za-z_][A-Za-z0-9_]*|[*#$@!?\-0-9{]))")


def acts(name: str, value: str) -> bool:
    """Whether a shell or the loader acts on it at the start. Blank is what none acts on."""
    if name == "LC_ALL" and value in ("C", "POSIX"):
        return False
    if value.startswith("() {") and settable(name):  # old shells take that for a function, whatever its name
        return True
    return bool(value) and (name in _NAMES or name.startswith(_PREFIXES))


def settable(name: str) -> bool:
    """Whether a shell other than bash can set it: it drops the rest from what it inherits."""
    return _IDENTIFIER.fullmatch(name) is not None


def settable_in_bash(name: str) -> bool:
    """Whether bash can set it as a variable."""
    return settable(name) and name not in _OPTIONS


def acting(environment: Mapping[str, str]) -> dict[str, str]:
    """The startup variables of an environment."""
    return {name: value for name, value in environment.items() if acts(name, value)}


def of_daemon(environ: bytes) -> dict[str, str]:
    """A process's environment, from its file in ``/proc``."""
    return dict(_pairs(environ.split(b"\0")))


def of_file(lines: bytes, environment: Mapping[str, str]) -> dict[str, str]:
    """What execd adds from its file: ``name=value`` lines, ``$name`` and ``${name}`` in values replaced."""
    stripped = (line.strip() for line in lines.split(b"\n"))

    def replaced(match: re.Match[str]) -> str:
        return environment.get(match[1] or match[2] or "", "")

    return {
        name: _REFERENCE.sub(replaced, value)
        for name, value in _pairs([line for line in stripped if not line.startswith(b"#")])
    }


def _pairs(entries: list[bytes]) -> Iterator[tuple[str, str]]:
    for entry in entries:
        name, sign, value = entry.partition(b"=")
        if sign:
            try:
                yield name.decode(), value.decode()
            except UnicodeDecodeError:
                continue
