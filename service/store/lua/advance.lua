-- advance: whoever follows an active claim writes what it saw, and the output that it read.
--
-- call     KEYS claim output request streams [looks active]
--          ARGV id token revision state notify body look_ms offset appended offset2 appended2 most
-- from     as the table says, at this token and revision
-- to       as the table says; the lease is over
-- offset   where `appended` begins in the log; '' for no output. `most`: bytes to keep (see output.lua). The second
--          pair is of the stderr of a job that has it apart, which is kept where an exec has its streams

local moves = {
  unknown = "unknown accepted running",
  accepted = "unknown accepted running ended",
  running = "unknown running ended",
  ended = "ended",
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
claim.body = ARGV[6]
local answer = write(now, claim, 0, ARGV[5] == '0', ARGV[7])
local most = tonumber(ARGV[12])
if ARGV[8] ~= '' then keep(KEYS[2], tonumber(ARGV[8]), ARGV[9], most) end
if ARGV[10] ~= '' then keep(KEYS[4], tonumber(ARGV[10]), ARGV[11], most) end
return answer
