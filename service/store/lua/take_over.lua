-- take_over: a claimed claim whose lease ran out gets a new owner.
--
-- call     KEYS claim output request streams  ARGV id token epoch new_token new_owner lease_ms
-- from     claimed, lease over, at this token and epoch
-- to       claimed: epoch + 1, same attempt, body and wish
-- A claimed claim with the new token is our own write whose answer was lost: done, with a fresh lease.

local moves = { claimed = "claimed" }

local now, claim, stop = open()
if stop then return stop end
if not may(moves, claim.state, 'claimed') then return unchanged(now, claim) end
if claim.token ~= ARGV[4] then
  if not owned(claim) or claim.lease > now then return unchanged(now, claim) end
  claim.epoch = claim.epoch + 1
  claim.token = ARGV[4]
  claim.owner = ARGV[5]
end
claim.lease = now + tonumber(ARGV[6])
return write(now, claim, 0)
