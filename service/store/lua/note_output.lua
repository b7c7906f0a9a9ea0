-- note_output: list a recorded output with its size. Written before the output itself, so that none is forgotten.
--
-- call     KEYS times sizes  ARGV name size horizon_ms
-- KEYS[1]  oncebox:{outputs}:times   zset, name by ms
-- KEYS[2]  oncebox:{outputs}:sizes   hash, name to bytes; the field '' is their sum
-- Entries older than the horizon have ended by themselves; some go at each call.

local function set_size(name, size)
  local before = tonumber(redis.call('HGET', KEYS[2], name) or 0)
  if size > 0 then redis.call('HSET', KEYS[2], name, size) else redis.call('HDEL', KEYS[2], name) end
  redis.call('HINCRBY', KEYS[2], '', size - before)
end

-- First what a full server refuses: after a removal it would take the rest.
local now = clock()
redis.call('ZADD', KEYS[1], now, ARGV[1])
set_size(ARGV[1], tonumber(ARGV[2]))
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[3]), 'LIMIT', 0, 10)) do
  redis.call('ZREM', KEYS[1], name)
  set_size(name, 0)
end
return 1
