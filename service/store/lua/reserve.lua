-- reserve: take a slot, or hold one that is taken for longer. A slot ends by itself, so a crash can't leak one.
--
-- call     KEYS slots  ARGV member limit ttl_ms asked
-- KEYS[1]  oncebox:slots:<name>   zset, member by the ms at which its slot ends
-- limit    slots that may be taken at once, by this member too; one that is taken already stays with its member
-- asked    1: who asks does not know whether it holds one already, which then ends no earlier; 0: it ends as told
-- answer   1 where the member has a slot

local now = clock()
local ttl = tonumber(ARGV[3])
local slot = redis.call('ZSCORE', KEYS[1], ARGV[1])
local has = slot and tonumber(slot) > now
if not has and redis.call('ZCOUNT', KEYS[1], now + 1, '+inf') >= tonumber(ARGV[2]) then return 0 end
-- Added before anything is taken away: a full server refuses the first write of a script or none.
local ends = now + ttl
if has and ARGV[4] == '1' then ends = math.max(ends, tonumber(slot)) end
redis.call('ZADD', KEYS[1], ends, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('PTTL', KEYS[1]) < ttl then redis.call('PEXPIRE', KEYS[1], ttl) end
return 1
