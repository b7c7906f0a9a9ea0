"""Claims: owning them, waiting for them, and the tasks of a replica."""
