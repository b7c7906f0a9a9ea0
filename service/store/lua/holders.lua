-- holders: who has a slot, and for how long. Changes nothing.
--
-- call     KEYS slots
-- KEYS[1]  oncebox:slots:<name>   zset, member by the ms at which its slot ends
-- answer   member, ms left, member, ms left...

local now = clock()
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. now, '+inf', 'WITHSCORES')
for i = 2, #found, 2 do found[i] = tonumber(found[i]) - now end
return found
