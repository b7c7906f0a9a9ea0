-- schedule: set when an active job is polled next.
--
-- call     KEYS looks  ARGV id after_ms mode
-- KEYS[1]  oncebox:{shard}:looks   zset, id by ms; or a list of chores
-- mode     LT: list it, never later than it stands; XX: only where it is listed

local now = clock()
return redis.call('ZADD', KEYS[1], ARGV[3], 'CH', now + tonumber(ARGV[2]), ARGV[1])
