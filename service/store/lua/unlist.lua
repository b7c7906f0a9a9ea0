-- unlist: take a job out of lists.
--
-- call     KEYS list...  ARGV id
-- KEYS     oncebox:{shard}:looks, or oncebox:{shard}:jobs:<tenant> and oncebox:{shard}:jobs:<tenant>:<sandbox>

local gone = 0
for _, key in ipairs(KEYS) do gone = gone + redis.call('ZREM', key, ARGV[1]) end
return gone
