"""Sandboxes of Oncebox for evaluations with Inspect AI: ``sandbox="oncebox"``."""

from service.adapters.inspect.config import OnceboxConfig

__all__ = ["OnceboxConfig"]
