-- touch: write something that ends by itself, to see whether the server takes writes.
--
-- call     KEYS memo  ARGV ttl_ms
-- KEYS[1]  oncebox:memo:<name>

return redis.call('PSETEX', KEYS[1], ARGV[1], '1')
