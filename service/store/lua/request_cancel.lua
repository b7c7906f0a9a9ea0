-- request_cancel: a caller wants the job cancelled. Wanted already: done, and nothing is written.
--
-- call     KEYS claim output request streams  ARGV id
-- from     every active state
-- to       the same; what no lease holds is looked at at once

local moves = {
  claimed = "claimed",
  dispatched = "dispatched",
  unknown = "unknown",
  accepted = "accepted",
  running = "running",
  ended = "ended",
}

local now, claim, stop = open()
if stop then return stop end
if not may(moves, claim.state, claim.state) then return unchanged(now, claim) end
if claim.cancel == '1' then return { 1, now, claim.raw } end
claim.cancel = '1'
return write(now, claim, 0)
