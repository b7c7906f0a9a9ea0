-- renew: a fresh lease for the owner. Nobody waits for this, so no message.
--
-- call     KEYS claim output request streams  ARGV id token epoch lease_ms
-- from     claimed, dispatched, at this token and epoch
-- to       the same

local moves = { claimed = "claimed", dispatched = "dispatched" }

local now, claim, stop = open()
if stop then return stop end
if not (owned(claim) and may(moves, claim.state, claim.state)) then return unchanged(now, claim) end
claim.lease = now + tonumber(ARGV[4])
return write(now, claim, 0, true)
