-- count: how many jobs are active. Changes nothing.
--
-- call     KEYS looks...
-- KEYS     oncebox:{shard}:looks   (on a cluster one a call)

local count = 0
for _, key in ipairs(KEYS) do count = count + redis.call('ZCARD', key) end
return count
