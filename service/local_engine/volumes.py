"""Where a volume's files are on the machine, and which a sandbox may not have."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .isolation import Mount
from .replies import Refused
from .requests import VolumeRequest

CLAIMS = "_pvc"
"""Directory of the volume root that holds the claims' volumes; no claim's name has an underscore."""

_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def is_claim(name: str) -> bool:
    """Whether a claim may be called that."""
    return _CLAIM.fullmatch(name) is not None


def claim_directory(name: str, root: Path) -> Path:
    """Where the files of a claim are."""
    return root / CLAIMS / name


class ClaimMissing(Refused):
    """A claim that must be there already is not."""


def resolve(volumes: tuple[VolumeRequest, ...], root: Path) -> list[Mount]:
    """The mounts of a create; missing subdirectories are made. Raises `Refused` (400).

    Only `root` and what lies below it may be mounted, also when links inside a volume point elsewhere.
    """
    for volume in volumes:
        _check(volume, root)
    return [Mount(_source(volume, root), _target(volume), volume.read_only) for volume in volumes]


def _check(volume: VolumeRequest, root: Path) -> None:
    if ".." in volume.sub_path.split("/"):
        message = f"SubPath '{volume.sub_path}' contains path traversal '..' which is not allowed."
        raise Refused(400, "VOLUME::INVALID_SUB_PATH", message)
    if volume.sub_path.startswith("/"):
        message = f"SubPath '{volume.sub_path}' must be a relative path, not absolute."
        raise Refused(400, "VOLUME::INVALID_SUB_PATH", message)
    if volume.claim is not None:
        if not is_claim(volume.claim):
            message = f"PVC claim name '{volume.claim}' is not a valid Kubernetes resource name."
            raise Refused(400, "VOLUME::INVALID_PVC_NAME", message)
        return
    path = volume.host_path or ""
    if not path.startswith("/") or ".." in path.split("/"):
        raise Refused(400, "VOLUME::INVALID_HOST_PATH", f"Host path '{path}' contains path traversal component '..'.")
    if os.path.normpath(path) != path:
        message = f"Host path '{path}' is not normalized. Remove redundant slashes."
        raise Refused(400, "VOLUME::INVALID_HOST_PATH", message)
    if not _within(path, str(root)):
        message = f"Host path '{path}' is not under any allowed prefix. Allowed prefixes: ['{root}']"
        raise Refused(400, "VOLUME::HOST_PATH_NOT_ALLOWED", message)


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _source(volume: VolumeRequest, root: Path) -> Path:
    base = Path(volume.host_path or "") if volume.claim is None else claim_directory(volume.claim, root)
    if volume.claim is not None and volume.make_claim:
        base.mkdir(parents=True, exist_ok=True)
    if volume.claim is not None and not base.is_dir():
        message = f"Volume '{volume.name}': Docker named volume '{volume.claim}' does not exist."
        raise ClaimMissing(400, "VOLUME::PVC_NOT_FOUND", message)
    source = base / volume.sub_path
    real = os.path.realpath(source)
    if not _within(real, os.path.realpath(base)) or not _within(real, os.path.realpath(root)):
        message = f"SubPath '{volume.sub_path}' resolves to a path outside of its volume."
        raise Refused(400, "VOLUME::INVALID_SUB_PATH", message)
    try:
        Path(real).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(500, "VOLUME::HOST_PATH_CREATE_FAILED", f"Failed to create {real}: {error}") from error
    return Path(real)


def _target(volume: VolumeRequest) -> str:
    target = os.path.normpath("/" + volume.mount_path.lstrip("/"))
    if target == "/":
        raise Refused(400, "VOLUME::INVALID_MOUNT_PATH", "Mount path '/' can't be mounted on.")
    return target
