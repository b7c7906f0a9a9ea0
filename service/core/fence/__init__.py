"""Fences: how a command runs once in its sandbox."""
