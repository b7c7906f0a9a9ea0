"""What a replica tells of itself: Prometheus metrics, and OpenTelemetry traces where they are switched on.

The core, the engine's client, the store and the API each know a small port; this package fills them in, and is the
only one that imports ``prometheus_client`` and ``opentelemetry``.
"""

from service.observability.replica import Observability

__all__ = ["Observability"]
