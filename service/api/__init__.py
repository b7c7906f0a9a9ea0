"""The HTTP contract: routes made from one table, and small ASGI middlewares. The rules are the core's."""
