"""What the store tells about its way to Redis."""


class PoolObserver:
    """Told of connections and commands. This one keeps nothing."""

    def limit(self, connections: int) -> None:
        """So many connections may be at work at once."""

    def pool(self, in_use: int, waiting: int) -> None:
        """Connections at work and commands that wait for one, now."""

    def waited(self, seconds: float) -> None:
        """A command that found every connection at work is sent."""

    def trip(self, seconds: float) -> None:
        """A write, of one or several commands, is answered, or failed."""

    def failed(self, error: str) -> None:
        """A command brought no answer: a name out of ``service.store.trouble.KINDS``."""
