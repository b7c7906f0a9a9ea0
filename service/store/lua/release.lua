-- release: the owner gives a claim back; its lease ends now.
--
-- call     KEYS claim output request streams  ARGV id token epoch
-- from     claimed, at this token and epoch
-- to       claimed

local moves = { claimed = "claimed" }

local now, claim, stop = open()
if stop then return stop end
if not (owned(claim) and may(moves, claim.state, 'claimed')) then return unchanged(now, claim) end
claim.lease = now
return write(now, claim, 0)
