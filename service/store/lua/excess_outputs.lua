-- excess_outputs: the oldest recorded outputs, as many as must go for the rest to fit. Changes nothing.
--
-- call     KEYS times sizes  ARGV budget limit
-- KEYS[1]  oncebox:{outputs}:times   zset, name by ms
-- KEYS[2]  oncebox:{outputs}:sizes   hash, name to bytes; the field '' is their sum
-- answer   names, oldest first

local total = tonumber(redis.call('HGET', KEYS[2], '') or 0)
local budget = tonumber(ARGV[1])
local names = {}
if total <= budget then return names end
for _, name in ipairs(redis.call('ZRANGE', KEYS[1], 0, tonumber(ARGV[2]) - 1)) do
  if total <= budget then break end
  names[#names + 1] = name
  total = total - tonumber(redis.call('HGET', KEYS[2], name) or 0)
end
return names
