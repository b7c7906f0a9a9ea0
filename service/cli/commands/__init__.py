"""The commands, one module each or a few that belong together: their words, and what they print."""
