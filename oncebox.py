"""The Oncebox SDK: ``from oncebox import Client, AsyncClient``.

The code lives in ``service.client``. ``service`` is a name that a user's own code may have, so this module
does not rely on it: where ``service`` is somebody else's, the same files are imported as ``oncebox.client``,
``oncebox.errors`` and ``oncebox.messages``, and ``service`` is left alone.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

_HERE = Path(__file__).resolve().with_name("service")


def _ours(spec: ModuleSpec | None) -> bool:
    return spec is not None and spec.origin is not None and Path(spec.origin).resolve().parent == _HERE


def _service_spec() -> ModuleSpec | None:
    loaded = sys.modules.get("service")
    if loaded is not None:
        return getattr(loaded, "__spec__", None)
    try:
        return find_spec("service")
    except (ImportError, ValueError):
        return None


if TYPE_CHECKING or _ours(_service_spec()):
    from service.client import *
    from service.client import __all__ as __all__
else:
    # With a path, this module is a package too. The client's modules name their neighbours relatively.
    __path__ = [str(_HERE)]
    from oncebox.client import *
    from oncebox.client import __all__ as __all__
