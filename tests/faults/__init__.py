"""The product's own processes under faults: replicas, Redis and the engine killed, frozen, cut off and restarted."""
