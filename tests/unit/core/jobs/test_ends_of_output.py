"""A marker is looked for at both ends of an output, whatever lies between."""

from __future__ import annotations

from typing import Any

import pytest

from service.core.jobs import output
from service.core.records import JobBody
from service.ports.engine import FileMissing, FileRange

TEXT = bytes(range(97, 123))


class Files:
    """A sandbox's files."""

    def __init__(self, **files: bytes) -> None:
        self.files = files
        self.reads = 0

    def output_path(self, command: str, stream: str = "output") -> str:
        return stream

    async def read_file(self, _: str, path: str, offset: int, length: int) -> FileRange:
        self.reads += 1
        if path not in self.files:
            raise FileMissing(path)
        data = self.files[path]
        return FileRange(offset, data[offset : offset + length], len(data))

    async def log(self, *_: Any) -> FileRange:
        raise FileMissing("log")


def body(kind: str = "job") -> JobBody:
    return JobBody(
        tenant="t", sandbox_id="s", fingerprint="f", command="", timeout=1, submitted_at=0.0, kind=kind, engine_id="e"
    )


@pytest.mark.parametrize(
    ("length", "ends", "whole", "reads"),
    [
        (30, TEXT, True, 1),
        (26, TEXT, True, 1),
        (20, TEXT, True, 2),
        (13, TEXT, True, 2),
        (12, TEXT[:12] + TEXT[-12:], False, 2),
        (1, b"az", False, 2),
    ],
)
async def test_what_lies_between_is_left_out(length: int, ends: bytes, whole: bool, reads: int) -> None:
    for files, each in ((Files(output=TEXT), body()), (Files(stdout=TEXT, stderr=b"no"), body("exec"))):
        engine: Any = files
        assert await output.read_ends(engine, each, length) == (ends, whole)
        assert files.reads == reads


async def test_no_output_is_not_an_empty_one() -> None:
    gone: Any = Files()
    empty: Any = Files(output=b"")
    assert await output.read_ends(gone, body(), 10) == (b"", False)
    assert await output.read_ends(empty, body(), 10) == (b"", True)
