"""The pages of the documentation, their code blocks, and how these are run.

A block is run as its language says: `console` in a shell (lines that begin with `$ ` are commands, `> ` continues
one, the rest is what they print), `python` in this process. The blocks of a page share one shell and one name space,
in order. In what is expected, `...` stands for anything. Two comments, directly above a block, change that:

    <!-- not run: why -->     it can't be run here
    <!-- prints -->           a `text` block: what the python block before it prints
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
SHOWN_URL = "127.0.0.1:8700"
"""The service's address in the texts."""
MARK = "==end-of-command=="

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[^\n`]*)\n(?P<code>.*?)^(?P=indent)(?P=fence) *$",
    re.DOTALL | re.MULTILINE,
)
_COMMENT = re.compile(r"<!--\s*(.*?)\s*-->\s*$", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    code: str
    comment: str
    """What the comment directly above says; empty where there is none."""

    @property
    def not_run(self) -> str | None:
        """Why it is not run; None: it is."""
        word, colon, reason = self.comment.partition(":")
        return reason.strip() if word == "not run" and colon else None

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> list[Path]:
    """Every page that a person wrote."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in found if DOCS / "reference" not in page.parents]


def blocks(page: Path) -> Iterator[Block]:
    """The page's blocks, in order."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        above = text[: match.start()]
        comment = _COMMENT.search(above[above.rfind("<!--") :]) if "<!--" in above else None
        code = re.sub(f"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
        yield Block(
            page=page,
            line=above.count("\n") + 1,
            language=match["language"].strip(),
            code=code,
            comment=comment[1] if comment else "",
        )


def same(expected: str, actual: str) -> bool:
    """Whether the output is what the page shows; `...` stands for anything, line ends at the end for nothing."""
    parts = [re.escape(part) for part in expected.strip().split("...")]
    return re.fullmatch(".*?".join(parts), actual.strip(), re.DOTALL) is not None


class Runner:
    """Runs the blocks of one page, against the service at `url`."""

    def __init__(self, url: str, folder: Path, environ: Mapping[str, str]) -> None:
        self._address = url.partition("://")[2]
        self._folder = folder
        self._names: dict[str, Any] = {"__name__": "__page__"}
        self._printed = ""
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env=dict(environ),
            start_new_session=True,
        )

    def close(self) -> None:
        """End the shell."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.close()
        self._shell.terminate()
        self._shell.wait(10)
        self._shell.stdout.close()

    def run(self, block: Block) -> None:
        """Run or read a block; raises `AssertionError` where it is not as the page says."""
        match block.language:
            case "console":
                self._console(block)
            case "python":
                self._python(block)
            case "text" if block.comment == "prints":
                assert same(block.code, self._printed), f"{block.where} shows\n{block.code}\nnot\n{self._printed}"
            case "toml":
                tomllib.loads(block.code)
            case "json":
                json.loads(block.code)
            case "yaml":
                list(yaml.safe_load_all(block.code))

    def _python(self, block: Block) -> None:
        code = compile("\n" * block.line + self._mapped(block.code), str(block.page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.chdir(self._folder):
            exec(code, self._names)
        self._printed = self._shown(printed.getvalue())

    def _console(self, block: Block) -> None:
        steps: list[tuple[str, str]] = []
        for line in block.code.splitlines():
            if line.startswith("$ "):
                steps.append((line[2:], ""))
                continue
            assert steps, f"{block.where}: a console block begins with a command"
            command, expected = steps[-1]
            if line.startswith("> ") and not expected:
                steps[-1] = (f"{command}\n{line[2:]}", "")
            else:
                steps[-1] = (command, f"{expected}{line}\n")
        for number, (command, expected) in enumerate(steps):
            code, output = self._command(self._mapped(command))
            asked = number + 1 < len(steps) and steps[number + 1][0].startswith("echo $?")
            assert code == 0 or asked, f"{block.where}: `{command}` exits with {code}:\n{output}"
            if expected:
                assert same(expected, output), f"{block.where}: `{command}` prints\n{output}\nnot\n{expected}"

    def _command(self, command: str) -> tuple[int, str]:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        mark = f'__code=$?; printf "\\n{MARK} %d\\n" $__code; (exit $__code)\n'
        # Standard input is the script: it is kept from the commands.
        self._shell.stdin.write(f"{{ {command}\n}} </dev/null\n{mark}".encode())
        self._shell.stdin.flush()
        lines: list[str] = []
        for raw in self._shell.stdout:
            line = raw.decode("utf-8", "replace")
            if line.startswith(MARK):
                return int(line.split()[1]), self._shown("".join(lines))
            lines.append(line)
        raise AssertionError(f"the shell ended in `{command}`:\n{''.join(lines)}")

    def _mapped(self, text: str) -> str:
        """With the address of the service that there is."""
        return text.replace(SHOWN_URL, self._address)

    def _shown(self, text: str) -> str:
        return text.replace(self._address, SHOWN_URL)


def environment(binaries: Path, folder: Path) -> dict[str, str]:
    """What a reader has who follows the pages: the command on the path, and nothing set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ONCEBOX_")}
    return {**kept, "PATH": f"{binaries}:{os.environ['PATH']}", "HOME": str(folder), "NO_COLOR": "1"}
