-- reopen: a retry really tries again.
--
-- call     KEYS claim output request streams [looks active tenants sandboxs minutes]
--          ARGV id token revision new_token new_owner lease_ms next_attempt body request horizon_ms
-- from     refused, voided; accepted: the submission met a void; unknown and done for sandboxes only (a job's id
--          starts with cmd_). At this token and revision
-- to       claimed: epoch + 1, no TTL, and no wish, but from accepted. The attempt goes up past a void, never after a
--          refusal, and as next_attempt (0, 1) says otherwise
-- A claimed claim with the new token is our own write whose answer was lost: done, with a fresh lease. What was
-- kept of an earlier attempt's output goes; request: '' keeps the one that is there.

local moves = {
  refused = "claimed",
  voided = "claimed",
  accepted = "claimed",
  unknown = "claimed",
  done = "claimed",
}

local now, claim, stop = open()
if stop then return stop end
if claim.token == ARGV[4] and claim.state == 'claimed' then
  claim.lease = now + tonumber(ARGV[6])
  return write(now, claim, 0, true)
end
local from = claim.state
if not (as_seen(claim) and may(moves, from, 'claimed')) then return unchanged(now, claim) end
if (from == 'unknown' or from == 'done') and string.sub(ARGV[1], 1, 4) == 'cmd_' then
  return unchanged(now, claim)
end
if from == 'voided' or from == 'accepted' or (from ~= 'refused' and ARGV[7] == '1') then
  claim.attempt = claim.attempt + 1
end
claim.state = 'claimed'
claim.epoch = claim.epoch + 1
claim.token = ARGV[4]
claim.owner = ARGV[5]
claim.lease = now + tonumber(ARGV[6])
if from ~= 'accepted' then claim.cancel = '0' end
claim.body = ARGV[8]
local answer = write(now, claim, 0)
redis.call('DEL', KEYS[2], KEYS[4])
if ARGV[9] ~= '' then redis.call('SET', KEYS[3], ARGV[9]) end
if KEYS[8] then
  enlist(now, KEYS[7], KEYS[8], ARGV[10])
  tally(now, KEYS[9], 'started')
end
return answer
