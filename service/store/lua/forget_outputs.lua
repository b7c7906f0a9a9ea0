-- forget_outputs: take recorded outputs that are gone out of the list.
--
-- call     KEYS times sizes  ARGV name...
-- KEYS[1]  oncebox:{shard}:outputs:times   zset, name by ms
-- KEYS[2]  oncebox:{shard}:outputs:sizes   hash, name to bytes; the field '' is their sum
-- answer   how many were listed

local gone = 0
for _, name in ipairs(ARGV) do
  local size = redis.call('HGET', KEYS[2], name)
  if size then
    redis.call('HDEL', KEYS[2], name)
    redis.call('HINCRBY', KEYS[2], '', -size)
  end
  gone = gone + redis.call('ZREM', KEYS[1], name)
end
return gone
