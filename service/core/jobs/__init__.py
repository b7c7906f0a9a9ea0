"""Jobs and execs: submitted, followed, recorded."""
