-- unlist: take a job out of lists.
--
-- call     KEYS list...  ARGV id
-- KEYS     oncebox:looks:<shard>, or oncebox:jobs:{tenant} and oncebox:jobs:{tenant}:<sandbox>

local gone = 0
for _, key in ipairs(KEYS) do gone = gone + redis.call('ZREM', key, ARGV[1]) end
return gone
