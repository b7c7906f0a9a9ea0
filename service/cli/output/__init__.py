"""What is written for people and for programs: the standard streams, tables, and the progress line."""
