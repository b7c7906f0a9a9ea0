-- dispatch: the owner is about to send the request. Not where a cancel is wished; never twice at one epoch.
--
-- call     KEYS claim output request streams  ARGV id token epoch lease_ms body
-- from     claimed, at this token and epoch, no cancel requested
-- to       dispatched, with a fresh lease

local moves = { claimed = "dispatched" }

local now, claim, stop = open()
if stop then return stop end
if not (owned(claim) and claim.cancel == '0' and may(moves, claim.state, 'dispatched')) then
  return unchanged(now, claim)
end
claim.state = 'dispatched'
claim.lease = now + tonumber(ARGV[4])
claim.body = ARGV[5]
return write(now, claim, 0)
