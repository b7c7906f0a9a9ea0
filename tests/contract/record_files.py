"""Records what a real execd answers to calls of files and users: `tests/vectors/engine_transcripts/files.jsonl`.

Run as root, on a machine that can spare `/tmp/oncebox-files` and `/workspace`, where the execd's working directory is
`/workspace` and its environment has `HOME=/tmp/oncebox-files/home` and `ONCEBOX_FILES=/tmp/oncebox-files`:

    python -m tests.contract.record_files http://127.0.0.1:44772 >tests/vectors/engine_transcripts/files.jsonl
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

from tests.contract.local_engine_rig import Answer, call

D = "/tmp/oncebox-files"
BOUNDARY = "the-boundary"
GIVES_UP = 2.0
"""Seconds after which a call that blocks is left."""

Request = dict[str, Any]


def query(path: str, **more: str) -> str:
    return "&".join([f"path={quote(path)}", *(f"{name}={quote(value)}" for name, value in more.items())])


def get(path: str, **headers: str) -> Request:
    return {"method": "GET", "path": path, **({"headers": headers} if headers else {})}


def post(path: str, body: Any) -> Request:
    return {"method": "POST", "path": path, "body": body}


def delete(path: str) -> Request:
    return {"method": "DELETE", "path": path}


def run(command: str, **more: Any) -> Request:
    return post("/command", {"command": command, **more})


def raw(path: str, text: str) -> Request:
    return {"method": "POST", "path": path, "text": text}


def form(*parts: tuple[str, str | None, str], end: str | None = "--") -> Request:
    """An upload; a part is its name, its file name (None: it has none) and its content."""
    text = ""
    for name, filename, content in parts:
        file = "" if filename is None else f'; filename="{filename}"'
        text += f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n{content}\r\n'
    last = "" if end is None else f"--{BOUNDARY}{end}\r\n"
    headers = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    return {"method": "POST", "path": "/files/upload", "headers": headers, "text": text + last}


def upload(path: str, content: str, **metadata: Any) -> Request:
    told = json.dumps({"path": path, **metadata})
    return form(("metadata", "metadata", told), ("file", "file", content))


def info(path: str) -> Request:
    return get(f"/files/info?{query(path)}")


def show(path: str) -> Request:
    return get(f"/files/download?{query(path)}")


def ranged(path: str, wanted: str) -> Request:
    return get(f"/files/download?{query(path)}", Range=f"bytes={wanted}")


def ls(path: str, **more: str) -> Request:
    return get(f"/directories/list?{query(path, **more)}")


def search(path: str, pattern: str) -> Request:
    return get(f"/files/search?{query(path, pattern=pattern)}")


def exchanges() -> Iterator[tuple[str, Request]]:
    """All of them, in order: each depends on the files that are there by then."""
    yield from uploads()
    yield from downloads()
    yield from names()
    yield from changes()
    yield from users()


def uploads() -> Iterator[tuple[str, Request]]:
    yield "clear", delete(f"/directories?{query(D)}")
    yield "upload makes its directories", upload(f"{D}/a/b/new", "one\r\ntwo\n")
    yield "its content", show(f"{D}/a/b/new")
    yield "info of it", info(f"{D}/a/b/new")
    yield "info of its directory", info(f"{D}/a/b")
    yield "upload over it, shorter, with a mode", upload(f"{D}/a/b/new", "3", mode=640)
    yield "its content then", show(f"{D}/a/b/new")
    yield "its mode", info(f"{D}/a/b/new")
    yield "upload over it without a mode", upload(f"{D}/a/b/new", "four")
    yield "its mode still", info(f"{D}/a/b/new")
    yield "upload of nothing", upload(f"{D}/empty", "", mode=600)
    yield "upload with set-user-id", upload(f"{D}/setuid", "x", mode=4755)
    yield "which is not set", run(f"stat -c %a {D}/setuid")
    yield "upload with a mode that is not octal", upload(f"{D}/eight", "x", mode=888)
    yield "is there all the same", show(f"{D}/eight")
    yield "upload with a mode below 0", upload(f"{D}/below", "x", mode=-1)
    yield "upload with a mode that is text", upload(f"{D}/text", "x", mode="644")
    yield "upload with an owner", upload(f"{D}/owned", "x", owner="nobody", group="daemon")
    yield "owned by it", info(f"{D}/owned")
    yield "upload with an unknown owner", upload(f"{D}/unowned", "x", owner="nobody-at-all")
    yield "upload with an unknown group", upload(f"{D}/unowned", "x", group="nobody-at-all")
    yield "upload with a number for an owner", upload(f"{D}/unowned", "x", owner="0")
    yield (
        "upload of two",
        form(
            ("metadata", "m", json.dumps({"path": f"{D}/one"})),
            ("metadata", "m", json.dumps({"path": f"{D}/two"})),
            ("file", "f", "1"),
            ("file", "f", "2"),
        ),
    )
    yield "the second", show(f"{D}/two")
    yield (
        "upload of two, one bad",
        form(
            ("metadata", "m", json.dumps({"path": f"{D}/one"})),
            ("file", "f", "11"),
            ("metadata", "m", json.dumps({"path": D})),
            ("file", "f", "22"),
        ),
    )
    yield "the first was written", show(f"{D}/one")
    yield (
        "upload, more metadata than files",
        form(
            ("metadata", "m", json.dumps({"path": f"{D}/one"})),
            ("metadata", "m", json.dumps({"path": f"{D}/two"})),
            ("file", "f", "1"),
        ),
    )
    yield "upload without metadata", form(("file", "f", "1"))
    yield "upload without a file", form(("metadata", "m", json.dumps({"path": f"{D}/one"})))
    yield (
        "upload whose metadata is a field",
        form(("metadata", None, json.dumps({"path": f"{D}/one"})), ("file", "f", "1")),
    )
    yield "upload whose metadata is no JSON", form(("metadata", "m", "{nope"), ("file", "f", "1"))
    yield "upload whose metadata is empty", form(("metadata", "m", ""), ("file", "f", "1"))
    yield "upload whose metadata is a list", form(("metadata", "m", "[]"), ("file", "f", "1"))
    yield "upload whose metadata has no path", form(("metadata", "m", "{}"), ("file", "f", "1"))
    yield "upload whose path is a number", form(("metadata", "m", '{"path": 1}'), ("file", "f", "1"))
    yield (
        "upload that breaks off",
        form(("metadata", "m", json.dumps({"path": f"{D}/broken"})), ("file", "f", "1"), end=None),
    )
    yield "wrote nothing", info(f"{D}/broken")
    yield (
        "upload whose last boundary is none",
        form(("metadata", "m", json.dumps({"path": f"{D}/unended"})), ("file", "f", "1"), end=""),
    )
    yield "wrote it", show(f"{D}/unended")
    yield "upload that is JSON", post("/files/upload", {"path": f"{D}/one"})
    yield "upload over a directory", upload(f"{D}/a", "x")
    yield "upload to a name with a slash", upload(f"{D}/slash/", "x")
    yield "upload below a file", upload(f"{D}/one/below", "x")
    yield "upload far below a file", upload(f"{D}/one/below/it", "x")
    yield "upload to a full device", upload("/dev/full", "x")
    yield "upload to a name that is too long", upload(f"{D}/{'x' * 256}", "x")
    yield "upload to a name with a NUL", upload(f"{D}/n\0ul", "x")
    yield "upload to a variable", upload("$ONCEBOX_FILES/by-variable", "v")
    yield "upload to a variable in braces", upload("${ONCEBOX_FILES}/by-braces", "b")
    yield "upload to an unset variable", upload("/tmp/$ONCEBOX_B/${ONCEBOX_A}", "x")
    yield "upload to the home", upload("~/by-home", "h")
    yield "upload to a relative path", upload("oncebox-relative/file", "r")
    yield "its place", run("cat oncebox-relative/file")
    yield "info of a relative path", info("./oncebox-relative//x/../file")
    yield "remove it", delete(f"/directories?{query('oncebox-relative')}")
    yield (
        "a link",
        run(f"cd {D}; ln -s one to-one; ln -s nowhere dangling; ln -s a to-a; ln -s loop loop; mkfifo fifo other"),
    )
    yield "upload through a link", upload(f"{D}/to-one", "through")
    yield "its target", show(f"{D}/one")
    yield "upload through a dangling link", upload(f"{D}/dangling", "made")
    yield "its target is made", show(f"{D}/nowhere")
    yield "remove that", delete(f"/files?{query(f'{D}/nowhere')}")
    yield "upload through a loop", upload(f"{D}/loop", "x")
    yield "upload to a FIFO", upload(f"{D}/fifo", "x")


def downloads() -> Iterator[tuple[str, Request]]:
    yield "a file", upload(f"{D}/digits", "0123456789")
    yield "download from 4", ranged(f"{D}/digits", "4-")
    yield "download 2 to 100", ranged(f"{D}/digits", "2-100")
    yield "download behind the end", ranged(f"{D}/digits", "10-20")
    yield "download of an empty file", ranged(f"{D}/empty", "0-9")
    yield "download without a path", get("/files/download")
    yield "download of a directory", show(f"{D}/a")
    yield "download of a part of a directory", ranged(f"{D}/a", "0-9")
    yield "download below a file", show(f"{D}/one/below")
    yield "download of a loop", show(f"{D}/loop")
    yield "download of a dangling link", show(f"{D}/dangling")
    yield "download of a variable", show("$ONCEBOX_FILES/by-variable")
    yield "download of an unset variable", show("$ONCEBOX_A")
    yield "download of what has no size", show("/proc/version")
    yield "download of a part of what has no size", ranged("/proc/version", "0-9")
    yield "download of a device", show("/dev/zero")
    yield "download of a part of a device", ranged("/dev/zero", "0-9")
    yield "download of a FIFO", ranged(f"{D}/other", "0-9")
    yield "download of a FIFO by lines", get(f"/files/download?{query(f'{D}/other', offset='1')}")
    yield "lines", upload(f"{D}/lines", "one\r\ntwo\n\nfour\r\r\nfive")
    yield "line 2 and 3", get(f"/files/download?{query(f'{D}/lines', offset='2', limit='2')}")
    yield "lines from 4", get(f"/files/download?{query(f'{D}/lines', offset='4')}")
    yield "lines from 9", get(f"/files/download?{query(f'{D}/lines', offset='9')}")
    yield "two lines", get(f"/files/download?{query(f'{D}/lines', limit='2')}")
    yield "lines from 0", get(f"/files/download?{query(f'{D}/lines', offset='0')}")
    yield "lines up to none", get(f"/files/download?{query(f'{D}/lines', limit='x')}")
    yield "lines of a range", get(f"/files/download?{query(f'{D}/lines', limit='2')}", Range="bytes=0-1")
    yield "lines of a directory", get(f"/files/download?{query(f'{D}/a', offset='1')}")


def names() -> Iterator[tuple[str, Request]]:
    yield "info of none", get("/files/info")
    yield "info of two", get(f"/files/info?{query(f'{D}/one')}&{query(f'{D}/two')}")
    yield "info of two, one missing", get(f"/files/info?{query(f'{D}/one')}&{query(f'{D}/none')}")
    yield "info of a link", info(f"{D}/to-one")
    yield "info of a dangling link", info(f"{D}/dangling")
    yield "info of a FIFO", info(f"{D}/fifo")
    yield "info of a device", info("/dev/null")
    yield "info below a file", info(f"{D}/one/below")
    yield "info of an unset variable", info("$ONCEBOX_A")
    yield "a sticky directory", run(f"mkdir -m 1777 {D}/sticky; chown 4242:4343 {D}/sticky")
    yield "info of it, its owner has no name", info(f"{D}/sticky")
    yield (
        "a tree",
        run(
            f"mkdir -p {D}/tree/b/c {D}/tree/é; cd {D}/tree; echo 1 >b/c/deep.txt; echo 2 >a.txt; echo 3 >B.md; "
            f"ln -s b l; printf x >\"$(printf '\\377')\"; printf x >'< & >'; "
            "touch b/.hidden; chmod 640 * b/c/* b/.hidden; "
            "chmod 750 b b/c é"
        ),
    )
    yield "list", ls(f"{D}/tree")
    yield "list with a slash", ls(f"{D}/tree/b/")
    yield "list, 2 deep", ls(f"{D}/tree", depth="2")
    yield "list, 0 deep", ls(f"{D}/tree", depth="0")
    yield "list, -1 deep", ls(f"{D}/tree", depth="-1")
    yield "list, x deep", ls(f"{D}/tree", depth="x")
    yield "list of nothing", ls(f"{D}/tree/é")
    yield "list without a path", get("/directories/list")
    yield "list of a file", ls(f"{D}/one")
    yield "list of a link", ls(f"{D}/tree/l")
    yield "list of a missing one", ls(f"{D}/none")
    yield "list below a file", ls(f"{D}/one/below")
    yield "list of an unset variable", ls("$ONCEBOX_A")
    yield "search of all", search(f"{D}/tree", "")
    yield "search by a star", search(f"{D}/tree", "*.txt")
    yield "search by two stars", search(f"{D}/tree", "**")
    yield "search by a question mark", search(f"{D}/tree", "?.md")
    yield "search by a class", search(f"{D}/tree", "[a-c]*.txt")
    yield "search by another class", search(f"{D}/tree", "[^a]*.txt")
    yield "search by alternatives", search(f"{D}/tree", "*.{md,txt}")
    yield "search by a wrong pattern", search(f"{D}/tree", "[a")
    yield "search of a file", search(f"{D}/one", "o*")
    yield "search of a link", search(f"{D}/tree/l", "*")
    yield "search of a missing one", search(f"{D}/none", "*")
    yield "search without a path", get("/files/search")


def changes() -> Iterator[tuple[str, Request]]:
    yield "move makes directories", post("/files/mv", [{"src": f"{D}/two", "dest": f"{D}/moved/far/two"}])
    yield "their mode", info(f"{D}/moved/far")
    yield "move onto a file", post("/files/mv", [{"src": f"{D}/one", "dest": f"{D}/digits"}])
    yield "move onto a directory", post("/files/mv", [{"src": f"{D}/one", "dest": f"{D}/a"}])
    yield "move onto a dangling link", post("/files/mv", [{"src": f"{D}/moved/far/two", "dest": f"{D}/dangling"}])
    yield "replaced it", info(f"{D}/dangling")
    yield "move of a missing one", post("/files/mv", [{"src": f"{D}/none", "dest": f"{D}/else"}])
    yield "move below a file", post("/files/mv", [{"src": f"{D}/one", "dest": f"{D}/digits/x"}])
    yield "move into itself", post("/files/mv", [{"src": f"{D}/tree", "dest": f"{D}/tree/b/tree"}])
    yield "move to an unset variable", post("/files/mv", [{"src": f"{D}/one", "dest": "$ONCEBOX_A"}])
    yield "move from an unset variable", post("/files/mv", [{"src": "$ONCEBOX_A", "dest": f"{D}/x"}])
    yield "move of nothing", post("/files/mv", [])
    yield "move of an object", post("/files/mv", {"src": "x"})
    yield "move, not JSON", raw("/files/mv", "{nope")
    yield "move, empty", raw("/files/mv", "")
    yield "permissions", post("/files/permissions", {f"{D}/one": {"mode": 4711, "owner": "nobody"}})
    yield "are set", info(f"{D}/one")
    yield "permissions through a link", post("/files/permissions", {f"{D}/to-one": {"mode": 600}})
    yield "are its target's", info(f"{D}/one")
    yield "permissions of nothing", post("/files/permissions", {f"{D}/one": {}})
    yield "permissions of a missing one", post("/files/permissions", {f"{D}/none": {"mode": 600}})
    yield "permissions, unknown owner", post("/files/permissions", {f"{D}/one": {"owner": "nobody-at-all"}})
    yield "permissions, unknown group", post("/files/permissions", {f"{D}/one": {"group": "nobody-at-all"}})
    yield "permissions, not octal", post("/files/permissions", {f"{D}/one": {"mode": 9}})
    yield "permissions, text", post("/files/permissions", {f"{D}/one": {"mode": "644"}})
    yield "permissions, a list", post("/files/permissions", [])
    yield "make a directory", post("/directories", {f"{D}/made/deep": {"mode": 700, "group": "daemon"}})
    yield "it is made", info(f"{D}/made/deep")
    yield "its parent", info(f"{D}/made")
    yield "make it again", post("/directories", {f"{D}/made/deep": {"mode": 777}})
    yield "changes nothing", info(f"{D}/made/deep")
    yield "make a directory over a file", post("/directories", {f"{D}/one": {}})
    yield "make a directory below a file", post("/directories", {f"{D}/one/x/y": {}})
    yield "make a directory, unknown owner", post("/directories", {f"{D}/made/x": {"owner": "nobody-at-all"}})
    yield "make a directory, null", post("/directories", {f"{D}/made/null": None})
    yield "make a directory, number", post("/directories", {f"{D}/made/number": 1})
    yield "replace", post("/files/replace", {f"{D}/digits": {"old": "234", "new": "<é>"}})
    yield "replaced", show(f"{D}/digits")
    yield "replace with a count", post("/files/replace?verbose=true", {f"{D}/digits": {"old": "x", "new": "y"}})
    yield "replace nothing", post("/files/replace", {f"{D}/digits": {"old": "", "new": "y"}})
    yield "replace in a missing one", post("/files/replace", {f"{D}/none": {"old": "x", "new": "y"}})
    yield "replace in a directory", post("/files/replace", {f"{D}/a": {"old": "x", "new": "y"}})
    yield "remove two, one missing", delete(f"/files?{query(f'{D}/empty')}&{query(f'{D}/none')}")
    yield "remove a directory as a file", delete(f"/files?{query(f'{D}/a')}")
    yield "remove a link to a directory as a file", delete(f"/files?{query(f'{D}/to-a')}")
    yield "another link", run(f"cd {D}; ln -s nowhere dangles")
    yield "remove a link", delete(f"/files?{query(f'{D}/to-one')}")
    yield "remove a dangling link", delete(f"/files?{query(f'{D}/dangles')}")
    yield "is left", info(f"{D}/dangles")
    yield "remove a FIFO", delete(f"/files?{query(f'{D}/fifo')}")
    yield "remove below a file", delete(f"/files?{query(f'{D}/one/below')}")
    yield "remove an unset variable", delete(f"/files?{query('$ONCEBOX_A')}")
    yield "remove a directory that is a dangling link", delete(f"/directories?{query(f'{D}/dangles')}")
    yield "is gone", info(f"{D}/dangles")
    yield "remove a directory", delete(f"/directories?{query(f'{D}/tree')}")
    yield "remove it again", delete(f"/directories?{query(f'{D}/tree')}")
    yield "remove a directory that is a file", delete(f"/directories?{query(f'{D}/setuid')}")
    yield "remove a directory below a file", delete(f"/directories?{query(f'{D}/one/below')}")
    yield "remove a directory by an unset variable", delete(f"/directories?{query('$ONCEBOX_A')}")
    yield "remove a directory with a dot", delete(f"/directories?{query(f'{D}/a/.')}")
    yield "files, wrong method", get("/files")
    yield "directories, wrong method", {"method": "PUT", "path": "/directories"}


def users() -> Iterator[tuple[str, Request]]:
    yield "open it", post("/files/permissions", {D: {"mode": 755}})
    yield "a user without a name", run("id -u; id -g; id -G; echo $HOME", cwd="/", uid=4242)
    yield "a user with a name", run("id -u; id -g; id -G", cwd="/", uid=65534)
    yield "a user and a group", run("id -u; id -g; id -G", cwd="/", uid=4242, gid=4343)
    yield "root by its number", run("id -u; id -g", cwd="/", uid=0)
    yield "a group alone", run("id", gid=4343)
    yield "a user below 0", run("id", uid=-1)
    yield "a user above all", run("id", uid=2**32)
    yield "the last user", run("id", uid=2**32 - 1)
    yield "a user by name", run("id", uid="nobody")
    yield "a private directory", run(f"mkdir -m 700 {D}/private")
    yield "a user in a directory of another", run("id", cwd=f"{D}/private", uid=4242)
    yield "the same in the background", run("id", cwd=f"{D}/private", uid=4242, background=True)
    yield "a user makes files of its own", run(f"umask 022; echo x >{D}/sticky/hers", cwd="/", uid=4242, gid=4343)
    yield "hers", info(f"{D}/sticky/hers")
    yield "a user and the daemon's file", run(f"cat {D}/private/x; echo x >{D}/one; echo $?", cwd="/", uid=4242)
    yield "clear all", delete(f"/directories?{query(D)}")


def send(base: str, request: Request, timeout: float) -> Answer:
    """One request of a transcript."""
    body = request["text"].encode() if "text" in request else request.get("body")
    return call(base + request["path"], request["method"], body, headers=request.get("headers"), timeout=timeout)


def record(base: str, name: str, request: Request) -> dict[str, Any]:
    try:
        answer = send(base, request, GIVES_UP)
    except TimeoutError:
        return {"name": name, "request": request, "status": None, "error": "the client gave up"}
    found = {
        "name": name,
        "request": request,
        "status": answer.status,
        "headers": answer.headers,
        "head_after_s": round(answer.head_after, 3),
        "end_after_s": round(answer.end_after, 3),
    }
    if answer.headers.get("content-type") == "text/event-stream":
        return {**found, "chunks": [[round(at, 3), text.decode()] for at, text in answer.chunks]}
    return {**found, "body": answer.body.decode("utf-8", "backslashreplace")}


if __name__ == "__main__":
    for name, request in exchanges():
        sys.stdout.write(json.dumps(record(sys.argv[1], name, request), ensure_ascii=False) + "\n")
