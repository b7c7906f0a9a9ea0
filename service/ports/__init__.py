"""What the core asks of a store and of an engine, as protocols."""
