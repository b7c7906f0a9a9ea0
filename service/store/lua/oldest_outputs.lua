-- oldest_outputs: how much is recorded in a shard, and the oldest of it. Changes nothing.
--
-- call     KEYS times sizes  ARGV limit
-- KEYS[1]  oncebox:{shard}:outputs:times   zset, name by ms
-- KEYS[2]  oncebox:{shard}:outputs:sizes   hash, name to bytes; the field '' is their sum
-- answer   {bytes of all, then name, ms, bytes of each, oldest first}

local found = { tonumber(redis.call('HGET', KEYS[2], '') or 0) }
local rows = redis.call('ZRANGE', KEYS[1], 0, tonumber(ARGV[1]) - 1, 'WITHSCORES')
for i = 1, #rows, 2 do
  found[#found + 1] = rows[i]
  found[#found + 1] = tonumber(rows[i + 1])
  found[#found + 1] = tonumber(redis.call('HGET', KEYS[2], rows[i]) or 0)
end
return found
