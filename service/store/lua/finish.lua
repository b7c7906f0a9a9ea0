-- finish: whoever follows a job writes its end, all of it or nothing: the record, the output in its last form, and the
-- chore that is left.
--
-- call     KEYS claim output request streams looks active times sizes chores [minutes]
--          ARGV id token revision state ttl_ms body output streams horizon_ms chore after_ms
--          ended
-- from     as the table says, at this token and revision
-- to       as the table says, with the TTL
-- output   the whole output in its last form, which takes the place of what is kept; '' for none. It was made from what
--          stood at this revision, so nothing that came later is lost. `streams`: the same for those of an exec, and
--          for the stderr of a job that has it apart
-- ended    what a caller sees of it now
-- chore    what is to be cleaned away `after_ms` from now; '' for nothing

local moves = {
  unknown = "voided refused closed",
  accepted = "voided refused closed",
  running = "closed",
  ended = "closed",
}

local now, claim, stop = open()
if stop then return stop end
if not (as_seen(claim) and may(moves, claim.state, ARGV[4])) then return unchanged(now, claim) end
claim.state = ARGV[4]
claim.lease = 0
claim.body = ARGV[6]
local answer = write(now, claim, ARGV[5])
for i, value in pairs({ [2] = ARGV[7], [4] = ARGV[8] }) do
  if value ~= '' then
    note_output(now, KEYS[7], KEYS[8], KEYS[i], #value, ARGV[9])
    redis.call('SET', KEYS[i], value, 'PX', ARGV[5])
  end
end
if ARGV[12] ~= '' then tally(now, KEYS[10], ARGV[12]) end
if ARGV[10] ~= '' then redis.call('ZADD', KEYS[9], 'LT', now + tonumber(ARGV[11]), ARGV[10]) end
return answer
