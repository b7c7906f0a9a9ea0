-- due: active jobs whose look is due, the longest overdue of each shard first; each is set back by the lease in
-- the same step, so that nobody else gets it meanwhile.
--
-- call     KEYS looks...  ARGV limit lease_ms
-- KEYS     oncebox:{shard}:looks   zsets, id by ms (on a cluster one a call)
-- answer   ids

local now = clock()
local later = now + tonumber(ARGV[2])
local limit = tonumber(ARGV[1])
local ids = {}
for _, key in ipairs(KEYS) do
  if #ids >= limit then break end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', key, '-inf', now, 'LIMIT', 0, limit - #ids)) do
    redis.call('ZADD', key, 'XX', later, id)
    ids[#ids + 1] = id
  end
end
return ids
