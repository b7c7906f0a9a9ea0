"""Archives over HTTP: whole trees in and out."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.acceptance.http_rig import Replica
from tests.acceptance.test_http_files import Files
from tests.support.processes import Spawner

MAX_FILE = 32 * 1024 * 1024
TAR = {"Content-Type": "application/x-tar"}


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    spawner = Spawner(tmp_path_factory.mktemp("archives"))
    yield Replica(spawner, {"ONCEBOX_MAX_FILE": str(MAX_FILE)})
    spawner.kill_all()


@pytest.fixture(scope="module")
def files(replica: Replica) -> Files:
    return Files(replica, replica.sandbox())


def packed(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", errors="surrogateescape") as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return made.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, link: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.mode, made.linkname = kind, mode, link
    return made


def unpacked(data: bytes) -> dict[str, tuple[bytes, int, str, bytes]]:
    """Type, mode, where a link leads, and content, by name."""
    found = {}
    with tarfile.open(fileobj=io.BytesIO(data), errors="surrogateescape") as tar:
        for each in tar:
            content = tar.extractfile(each).read() if each.isreg() else b""  # type: ignore[union-attr]
            mode = 0 if each.issym() else each.mode
            found[each.name.removeprefix("./")] = (each.type, mode, each.linkname, content)
    found.pop(".", None)
    return found


NAMES = st.text(
    st.characters(min_codepoint=1, max_codepoint=0x2FFF, exclude_characters="/"), min_size=1, max_size=12
).filter(lambda name: name not in (".", ".."))
ODD = st.sampled_from(["$HOME", "~", "a b", "-x", "*", "\udcfe\udcff", "n" * 255, "new\nline\n", "'\"`"])
NODES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        st.tuples(st.just("file"), st.integers(0, 0o7777), st.binary(max_size=2000)),
        st.tuples(st.just("link"), st.sampled_from(["x", "./a/b", "gone"])),
    ),
    lambda below: st.tuples(
        st.just("directory"), st.integers(0, 0o7777), st.dictionaries(NAMES | ODD, below, max_size=4)
    ),
    max_leaves=12,
)


def members_of(tree: dict[str, Any], above: str = "") -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    for name, node in tree.items():
        path = above + name
        if node[0] == "file":
            yield member(path, mode=node[1]), node[2]
        elif node[0] == "link":
            yield member(path, tarfile.SYMTYPE, link=node[1]), b""
        else:
            yield member(path, tarfile.DIRTYPE, node[1]), b""
            yield from members_of(node[2], path + "/")


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(NAMES | ODD, NODES, max_size=5), st.booleans(), st.booleans())
def test_any_tree_comes_back_as_it_was(files: Files, tree: dict[str, Any], zipped: bool, there: bool) -> None:
    files.remove("tree", recursive="true")
    if there:
        files.replica.ask("POST", files.base + "/directories", {"path": "tree"})
    try:
        data = packed(*members_of(tree))
    except (UnicodeEncodeError, ValueError):
        return
    if any(len(part.encode("utf-8", "surrogateescape")) > 255 for name in unpacked(data) for part in name.split("/")):
        return
    answer = files.ask("PUT", "archive", gzip.compress(data) if zipped else data, path="tree", headers=TAR)
    assert answer.status == 200, answer.data
    expected = unpacked(data)
    assert answer.json() == {"files": len(expected), "bytes": sum(len(each[3]) for each in expected.values())}
    answer = files.ask("GET", "archive", path="tree")
    assert answer.status == 200, answer.data
    assert answer.headers["Content-Type"] == "application/x-tar"
    assert answer.headers["Cache-Control"] == "no-cache"
    assert unpacked(answer.data) == expected


def test_many_small_files_in_one_archive(files: Files) -> None:
    data = packed(*((member(f"d{number % 7}/f{number}"), b"x" * 10_000) for number in range(200)))
    assert files.ask("PUT", "archive", data, path="small", headers=TAR).json() == {"files": 200, "bytes": 2_000_000}
    assert len(unpacked(files.ask("GET", "archive", path="small").data)) == 207
    assert files.ask("HEAD", "archive", path="small").status == 200


@pytest.mark.parametrize(
    "members",
    [
        [(member("/etc/x"), b"")],
        [(member("../x"), b"")],
        [(member("l", tarfile.SYMTYPE, link="/etc"), b"")],
        [(member("l", tarfile.SYMTYPE, link="../x"), b"")],
        [(member("l", tarfile.LNKTYPE, link="first"), b"")],
        [(member("null", tarfile.CHRTYPE), b"")],
    ],
)
def test_what_leads_outside_is_refused_whole(files: Files, members: list[tuple[tarfile.TarInfo, bytes]]) -> None:
    data = packed((member("first"), b"x" * 100_000), *members)
    for path in ("refused", "."):
        answer = files.ask("PUT", "archive", data, path=path, headers=TAR)
        assert (answer.status, answer.json()["code"]) == (422, "INVALID_REQUEST"), answer.data
    assert not [name for name in files.names() if name in ("refused", "first")]


def test_what_is_no_tar_has_a_problem(files: Files) -> None:
    for body in (b"", b"no tar", packed((member("a"), b"x" * 9999))[:5000]):
        answer = files.ask("PUT", "archive", body, path="bad", headers=TAR)
        assert (answer.status, answer.json()["code"]) == (422, "INVALID_REQUEST")
    answer = files.ask("PUT", "archive", b"{}", path="bad", headers={"Content-Type": "application/json"})
    assert answer.status == 415
    bomb = gzip.compress(packed((member("a"), b"\0" * (MAX_FILE + 1))))
    answer = files.ask("PUT", "archive", bomb, path="bad", headers=TAR)
    assert (answer.status, answer.json()["code"]) == (413, "FILE_TOO_LARGE")
    assert files.ask("GET", "archive", path="bad").json()["code"] == "FILE_NOT_FOUND"
    files.put("file", b"x")
    assert files.ask("GET", "archive", path="file").json()["code"] == "NOT_A_DIRECTORY"
    assert files.ask("HEAD", "archive", path="file").status == 409
    assert files.ask("PUT", "archive", packed(), path="file", headers=TAR).json()["code"] == "NOT_A_DIRECTORY"


def test_unpacking_that_takes_long_is_a_job_to_be_followed(files: Files, tmp_path: Path) -> None:
    """A `tar` that takes its time stands first in PATH: a directory of the sandbox's own."""
    replica = files.replica
    slow = tmp_path / "tar"
    slow.write_text('#!/bin/sh\nPATH=/usr/bin:/bin; [ "$1" != -xpof ] || sleep 10\nexec tar "$@"\n')
    slow.chmod(0o755)
    sandbox = Files(replica, replica.sandbox(env={"PATH": f"{tmp_path}:{os.environ['PATH']}"}))
    answer = sandbox.ask("PUT", "archive", packed((member("a"), b"x")), path="late", headers=TAR)
    if answer.status == 200:
        pytest.skip("this engine's sandboxes do not see the slow tar")
    assert answer.status == 202, answer.data
    job = answer.json()
    assert answer.headers["Location"] == f"/v1/exec-jobs/{job['command_id']}"
    ended, _ = replica.follow(job["command_id"])
    assert (ended["state"], ended["exit_code"]) == ("exited", 0)
    assert sandbox.get("late/a").data == b"x"
