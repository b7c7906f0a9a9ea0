-- forget: drop a job from the lists of active ones where its claim is gone or over. Nothing else takes it out there but
-- the script that ends it.
--
-- call     KEYS claim output request streams looks active  ARGV id
-- KEYS     those of a claim, as in prelude.lua
-- answer   1 where it is in no such list now, 0 where its claim is active

local _, claim, stop = open()
if claim and not MORTAL[claim.state] then return 0 end
if stop and stop[1] == -1 then return 0 end
redis.call('ZREM', KEYS[5], ARGV[1])
redis.call('SREM', KEYS[6], ARGV[1])
return 1
