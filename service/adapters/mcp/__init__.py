"""Sandboxes and jobs as tools of the Model Context Protocol: ``oncebox mcp``."""
