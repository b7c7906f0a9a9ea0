"""Claims, kept output and indexes in Redis: one adapter for a server, Sentinel, Cluster, or in process."""

from service.store.adapter import RedisStore, open_store

__all__ = ["RedisStore", "open_store"]
