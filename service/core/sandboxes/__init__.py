"""Sandboxes: created once, shown, kept for as long as they are needed."""
