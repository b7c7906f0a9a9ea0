-- poll_slot: one caller's right to do a thing, and its place in a queue that moves at a steady pace (GCRA with waiting).
--
-- call     KEYS lease queue  ARGV lease_ms interval_ms burst most_ms more
-- KEYS[1]  oncebox:{<queue>}:turn:<name>   held by whoever has the right; ends by itself
-- KEYS[2]  oncebox:{<queue>}:paid          the time, ms, up to which the queue is taken
-- interval ms of one place, with a fraction; burst: places that may be taken at once after a quiet time
-- most     ms that anybody waits at the most: past it the queue gives way
-- more     places that the caller took without asking since it asked last
-- answer   ms to wait, or -1: somebody else has the right. The lease begins when the wait is over

local now = clock()
local interval, most = tonumber(ARGV[2]), tonumber(ARGV[4])
local paid = tonumber(redis.call('GET', KEYS[2]) or 0)
-- Both bounds hold for a clock that was set back, too.
paid = math.min(math.max(paid, now - interval * tonumber(ARGV[3])) + interval * tonumber(ARGV[5]), now + most)
local wait = math.max(0, math.ceil(paid - now))
local mine = redis.call('EXISTS', KEYS[1]) == 0
if mine then
  redis.call('PSETEX', KEYS[1], tonumber(ARGV[1]) + wait, '1')
  paid = paid + interval
end
redis.call('PSETEX', KEYS[2], 3600000, string.format('%.3f', paid))
return mine and wait or -1
