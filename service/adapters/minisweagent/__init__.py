"""Sandboxes of Oncebox as environments of mini-swe-agent."""

from service.adapters.minisweagent.environment import OnceboxEnvironment, OnceboxEnvironmentConfig

__all__ = ["OnceboxEnvironment", "OnceboxEnvironmentConfig"]
