"""The client of an OpenSandbox-compatible engine: the only module that speaks to one."""

from service.engine.client import OpenSandboxEngine

__all__ = ["OpenSandboxEngine"]
