-- advance: whoever follows writes what it saw, and the output that it read.
--
-- call     KEYS claim output request streams
--          ARGV id token revision state ttl_ms quiet body offset appended most record
-- from     as the table says, at this token and revision
-- to       as the table says; the lease is over
-- offset   where `appended` begins in the log; '' for no output. `most`: bytes to keep (see output.lua)
-- record   for closed: the whole of the output in its last form, which takes the place of what is kept; '' for none.
--          It was made from what stood at this revision, so nothing that came later is lost

local moves = {
  unknown = "unknown accepted running voided refused ended closed done",
  accepted = "unknown accepted running voided refused ended closed",
  running = "unknown running ended closed",
  ended = "ended closed",
  done = "done",
}

local HEADER = 38

-- Joins `data` on where it begins at the end of what is kept, else puts it in its place.
local function keep(key, offset, data, most)
  local kind, base = string.match(redis.call('GETRANGE', key, 0, HEADER - 1), '^([rz])(%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d%d)')
  if kind == 'r' then
    local length = redis.call('STRLEN', key) - HEADER
    if tonumber(base) + length == offset then
      if length + #data <= 2 * most then return redis.call('APPEND', key, data) end
      data = redis.call('GETRANGE', key, HEADER, -1) .. data
      offset = tonumber(base)
    end
  end
  if #data > 2 * most then
    offset = offset + #data - most
    data = string.sub(data, #data - most + 1)
  end
  return redis.call('SET', key, string.format('r%018.0f%018d\n', offset, 0) .. data)
end

local now, claim, stop = open()
if stop then return stop end
if not (as_seen(claim) and may(moves, claim.state, ARGV[4])) then return unchanged(now, claim) end
claim.state = ARGV[4]
claim.lease = 0
claim.body = ARGV[7]
local answer = write(now, claim, ARGV[5], ARGV[6] == '1')
if ARGV[11] ~= '' then
  redis.call('SET', KEYS[2], ARGV[11])
  if tonumber(ARGV[5]) > 0 then redis.call('PEXPIRE', KEYS[2], ARGV[5]) end
elseif ARGV[8] ~= '' then
  keep(KEYS[2], tonumber(ARGV[8]), ARGV[9], tonumber(ARGV[10]))
end
return answer
