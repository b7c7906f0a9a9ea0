"""A replica as a process: its socket and HTTP server, its log, its signals and its end; one, or several."""
