"""Runs the files' scripts in each shell that is here, on a directory of the machine."""

from __future__ import annotations

import io
import os
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.core.files import scripts
from service.core.files.listing import parse_page
from service.core.files.shell import Said, Shell, parsed
from service.core.files.tar import repack
from service.messages import File
from tests.unit.core.files.test_tar import archive


def shells() -> list[str]:
    """Those that are here: busybox stands for an image that has nothing else."""
    return [name for name in ("bash", "dash", "busybox") if shutil.which(name)]


class Place:
    """A sandbox's file system, as far as these tests go: a working directory and a fence directory."""

    def __init__(self, shell: str, folder: Path) -> None:
        self.busybox = shell == "busybox"
        self.root = folder / "root"
        self.work = self.root / "work"
        self.fences = folder / "fences"
        self.work.mkdir(parents=True)
        self.fences.mkdir()
        self._argv = [shell, "-c"] if shell != "busybox" else ["busybox", "sh", "-c"]
        self._env: dict[str | bytes, str | bytes] = {"PATH": os.environ["PATH"]}
        if shell == "busybox":
            tools = folder / "bin"
            tools.mkdir()
            busybox = shutil.which("busybox")
            for name in subprocess.run(
                ["busybox", "--list"], capture_output=True, text=True, check=True
            ).stdout.split():
                (tools / name).symlink_to(busybox or "")
            self._env = {"PATH": str(tools)}
        self._texts = Shell(None, str(self.fences), startup=None, asleep=None, mounts=())  # type: ignore[arg-type]

    def run(
        self, text: str, path: str | bytes = ".", *, token: str = "", uid: int | None = None, **values: str
    ) -> Said:
        """What the script says; ``end`` is its reason."""
        env: dict[str | bytes, str | bytes] = {
            **self._env,
            "ONCEBOX_PATH": path,
            "ONCEBOX_TOKEN": token or secrets.token_hex(16),
            **{f"ONCEBOX_{name}": value for name, value in values.items()},
        }
        run = subprocess.run(
            [*self._argv, self._texts.text(text)],
            cwd=self.work,
            env=env,  # type: ignore[arg-type]
            stdin=subprocess.DEVNULL,
            capture_output=True,
            user=uid,
            group=uid,
            extra_groups=None if uid is None else [],
            timeout=60,
            check=False,
        )
        said = parsed(run.stdout.decode())
        assert "end" in said, (run.returncode, run.stdout[-2000:], run.stderr[-2000:])
        return said

    def put(
        self, path: str | bytes, *pieces: bytes, match: str = "", mode: str = "", own: str = "", uid: int | None = None
    ) -> str:
        """A whole upload; the reason that it ended with, or `new` or `old`."""
        token = secrets.token_hex(16)
        said = self.run(scripts.PREPARE, path, token=token, uid=uid)
        if said["end"] != "ok":
            return said["end"]
        for number, piece in enumerate(pieces):
            (self.fences / f".way.{token}" / "to" / f"{number:06}.x").write_bytes(piece)
        if len(pieces) > 1:
            said = self.run(scripts.APPEND, token=token, uid=uid, UPTO=str(len(pieces) - 2), OWN=own)
            if said["end"] != "ok":
                self.run(scripts.ABORT, token=token)
                return said["end"]
        more = {"SIZE": str(sum(map(len, pieces))), "MATCH": match, "MODE": mode, "OWN": own}
        said = self.run(scripts.FINISH, path, token=token, uid=uid, **more)
        return said["end"] if said["end"] != "ok" else ("new" if said["made"] == "1" else "old")

    def unpack(
        self, path: str | bytes, archive: bytes, *, files: int = 0, root: str = "", uid: int | None = None
    ) -> Said:
        """An archive in two pieces, unpacked."""
        token = secrets.token_hex(16)
        said = self.run(scripts.PREPARE_UNPACK, path, token=token, uid=uid)
        if said["end"] != "ok":
            return said
        half = len(archive) // 2
        for number, piece in enumerate((archive[:half], archive[half:])):
            (self.fences / f".way.{token}" / "to" / f"{number:06}.x").write_bytes(piece)
        return self.run(scripts.UNPACK, token=token, uid=uid, FILES=str(files), ROOT=root)

    def pack(self, path: str | bytes, *, uid: int | None = None) -> bytes:
        """The tar of a directory."""
        token = secrets.token_hex(16)
        said = self.run(scripts.PACK, path, token=token, uid=uid)
        assert said["end"] == "ok", said.lines
        data = (self.fences / f".way.{token}" / "tar").read_bytes()
        assert len(data) == int(said["size"])
        assert self.run(scripts.ABORT, token=token, uid=uid)["end"] == "ok"
        return data

    def list(self, path: str | bytes = ".", *, page: int = 200) -> Sequence[File]:
        """Everything in a directory, page by page."""
        found: list[tuple[bytes, File]] = []
        while True:
            after = found[-1][0].replace(b"\n", b"/") if found else b""
            after_text = "".join(f"\\{byte:03o}" for byte in after)
            said = self.run(scripts.LIST, path, PAGE=str(page), AFTER=after_text)
            assert said["end"] == "ok", said.lines
            some = parse_page(said, b"/d")
            found += some
            if "more" not in said:
                return [file for _, file in found]
            assert some

    def leftovers(self) -> Sequence[str]:
        """What is left of uploads, anywhere."""
        ways = [str(path) for path in self.fences.iterdir()]
        return ways + [str(path) for path in self.root.rglob(f"{scripts.UPLOAD}*")]


def packed(*members: tuple[str, dict[str, Any], bytes]) -> bytes:
    """A tar as it comes into a sandbox."""
    out = io.BytesIO()
    repack(iter([archive(*members)]), out.write, most=1 << 30)
    return out.getvalue()
