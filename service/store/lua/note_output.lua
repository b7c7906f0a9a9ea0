-- note_output: list a recorded output with its size. Written before the output itself, so that none is forgotten.
--
-- call     KEYS times sizes  ARGV name size horizon_ms
-- KEYS[1]  oncebox:{outputs}:times   zset, name by ms
-- KEYS[2]  oncebox:{outputs}:sizes   hash, name to bytes; the field '' is their sum
-- Entries older than the horizon have ended by themselves; some go at each call.

local function forget(name)
  local size = redis.call('HGET', KEYS[2], name)
  if size then
    redis.call('HDEL', KEYS[2], name)
    redis.call('HINCRBY', KEYS[2], '', -size)
  end
  return redis.call('ZREM', KEYS[1], name)
end

local now = clock()
forget(ARGV[1])
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
redis.call('HINCRBY', KEYS[2], '', ARGV[2])
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[3]), 'LIMIT', 0, 10)) do
  forget(name)
end
return 1
