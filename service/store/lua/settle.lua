-- settle: the owner writes how it went.
--
-- call     KEYS claim output request streams [looks active [minutes]]
--          ARGV id token epoch state ttl_ms body look_ms ended
-- from     claimed, dispatched; unknown too: an answer that came late. At this token and epoch
-- to       as the table says; the lease is over
-- ended    what a caller sees of a job that is over now; '' where it is not

local moves = {
  claimed = "refused running closed done",
  dispatched = "refused unknown accepted done",
  unknown = "accepted done",
}

local now, claim, stop = open()
if stop then return stop end
if not (owned(claim) and may(moves, claim.state, ARGV[4])) then return unchanged(now, claim) end
claim.state = ARGV[4]
claim.lease = 0
claim.body = ARGV[6]
local answer = write(now, claim, ARGV[5], false, ARGV[7])
if ARGV[8] ~= '' then tally(now, KEYS[7], ARGV[8]) end
return answer
