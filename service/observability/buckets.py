"""Bounds of the histograms, in seconds."""

CALLS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
"""Requests and engine calls: from an answer out of Redis to the create of a sandbox."""
ROUND_TRIPS = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 0.5, 1.0, 2.5, 4.0)
"""Redis: 4 s is the deadline of a command."""
LAGS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0)
"""Delays that should be next to nothing."""
AGES = (0.5, 1.0, 5.0, 9.5, 10.5, 20.0, 29.0, 31.0, 45.0, 59.0, 61.0, 90.0, 119.0, 121.0, 179.0, 181.0, 299.0, 301.0,
        350.0, 599.0, 601.0, 899.0, 901.0, 1800.0, 3599.0, 3601.0, 7200.0)  # fmt: skip
"""Ages of lost streams. The narrow ones stand around the idle and total timeouts that hops are shipped with (10, 30,
60, 120, 180, 300, 350, 600, 900, 3600 s): a heap in one of them names the hop that was configured with it."""
SILENCES = (0.1, 0.5, 1.0, 2.0, 2.9, 3.1, 4.0, 5.0, 6.1, 8.1, 9.5, 10.5, 15.0, 29.0, 31.0, 59.0, 61.0)
"""Time since the last sign of life on a lost stream. execd's heartbeats come every 3 s, ours every 8 s; after 10 s an
engine's stream is given up."""
