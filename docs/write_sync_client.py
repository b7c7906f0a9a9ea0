"""Writes the synchronous half of the SDK from the asynchronous one: ``python docs/write_sync_client.py [--check]``.

``service/client/_async`` is written by hand, ``service/client/_sync`` is made from it, word by word; ``make format``
does so, and ``make check`` fails where the two differ.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parent.parent / "service" / "client"
SOURCE, TARGET = CLIENT / "_async", CLIENT / "_sync"
NOTE = "# Generated from service/client/_async by docs/write_sync_client.py; do not edit.\n"

# Two kinds of lists are one where nothing can be awaited.
PHRASES = {"Iterable[AsyncSandbox | str] | AsyncIterable[AsyncSandbox | str]": "Iterable[AsyncSandbox | str]"}
WORDS = {
    r"async (?=def |for |with )": "",
    r"await ": "",
    r"__a(?=enter__|exit__)": "__",
    r"async_(?=driver|pool)": "sync_",
    r"\bAsync(?=Driver\b|Pool\b)": "Sync",
    r"\bAsync(?=Client\b|Sandbox\b|Files\b|Job\b|TaskRun\b|TaskMap\b|Iterator\b|Iterable\b)": "",
    r"\basynchronous\b": "synchronous",
}


def generated() -> dict[Path, str]:
    """Each file of the synchronous half, and what it should say."""
    return {TARGET / path.name: made(path) for path in sorted(SOURCE.glob("*.py"))}


def made(path: Path) -> str:
    """The synchronous twin of one file, formatted as all code is."""
    text = path.read_text()
    for phrase, twin in PHRASES.items():
        text = text.replace(phrase, twin)
    for word, twin in WORDS.items():
        text = re.sub(word, twin, text)
    # The order of imports and the places where lines break are the formatter's.
    for command in (["check", "--quiet", "--select", "I,F401", "--fix"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(CLIENT / "_sync" / path.name), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return NOTE + text


def differing() -> list[str]:
    """The names of the files that differ from their twins, and of those that have none."""
    files = generated()
    wrong = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    return sorted(path.name for path in {*wrong, *(set(TARGET.glob("*.py")) - set(files))})


def write() -> None:
    """Writes the synchronous half."""
    TARGET.mkdir(exist_ok=True)
    files = generated()
    for path in set(TARGET.glob("*.py")) - set(files):
        path.unlink()
    for path, text in files.items():
        path.write_text(text)


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        write()
    elif names := differing():
        sys.exit(f"service/client/_sync: run `make format`, which makes these anew: {', '.join(names)}")
