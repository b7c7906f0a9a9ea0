"""The network between callers, replicas and the engine: its weather."""

from __future__ import annotations

import random
from dataclasses import dataclass


class Dropped(Exception):
    """A call brought no answer: it may have been carried out."""


@dataclass
class Weather:
    """How likely each trouble of a message is, for a while."""

    lost: float = 0.0
    """It never arrives, and nobody is told."""
    cut: float = 0.0
    """The connection breaks: before or after it arrived."""
    doubled: float = 0.0
    """It arrives twice."""
    late: float = 0.0
    """It arrives, after up to ``lateness`` seconds."""
    lateness: float = 20.0
    latency: float = 0.002
    silent: bool = False
    """Nothing comes through at all."""

    def delay(self, rng: random.Random) -> float:
        """Seconds that one message takes."""
        delay = rng.uniform(0.2, 2.0) * self.latency
        return delay + rng.uniform(0.0, self.lateness) if rng.random() < self.late else delay


class Network:
    """The network between replicas and the engine."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.weather = Weather()
        self.of_host: dict[str, Weather] = {}
        """That of some replicas, where it differs."""

    def at(self, host: str) -> Weather:
        """The weather where a host is."""
        return self.of_host.get(host, self.weather)
