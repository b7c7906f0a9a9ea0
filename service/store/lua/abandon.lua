-- abandon: anybody notes that an owner's lease ran out.
--
-- call     KEYS claim output request streams [looks active [minutes]]  ARGV id token revision ttl_ms body
-- from     claimed, dispatched; lease over, at this token and revision
-- to       refused (nothing was sent), with the TTL; unknown (it may have been sent), without

local moves = { claimed = "refused", dispatched = "unknown" }

local now, claim, stop = open()
if stop then return stop end
local to = moves[claim.state]
if not (to and as_seen(claim) and claim.lease <= now) then return unchanged(now, claim) end
claim.state = to
claim.lease = 0
claim.body = ARGV[5]
local answer = write(now, claim, ARGV[4])
if to == 'refused' then tally(now, KEYS[7], 'failed') end
return answer
