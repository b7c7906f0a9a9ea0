"""Sandboxes of Oncebox as deployments of SWE-ReX."""

from service.adapters.swerex.deployment import OnceboxDeployment, OnceboxDeploymentConfig
from service.adapters.swerex.runtime import OnceboxRuntime

__all__ = ["OnceboxDeployment", "OnceboxDeploymentConfig", "OnceboxRuntime"]
