-- claim: make the claim where there is none.
--
-- call     KEYS claim output request streams [looks active [tenants sandboxs minutes]] sandbox
--          ARGV id token owner lease_ms body request state horizon_ms
-- from     absent
-- to       claimed; dispatched, where all that the request needs is known already. Epoch 1, attempt 1, no TTL
-- A claim in that state with this very token is our own write whose answer was lost: done, with a fresh lease. Nothing
-- has been sent yet then: sending begins when this is answered. It is written again, so that a WAIT behind it has
-- something to wait for.
-- answer   as the others', and what is remembered of the job's sandbox (KEYS[#KEYS]), or nil

local moves = { absent = "claimed dispatched" }

local known = redis.call('GET', KEYS[#KEYS])

local function told(answer)
  answer[4] = known
  return answer
end

local now = clock()
local claim = {
  state = ARGV[7], epoch = 1, attempt = 1, revision = 1, lease = now + tonumber(ARGV[4]), cancel = '0',
  token = ARGV[2], owner = ARGV[3], body = ARGV[5],
}
local raw = form(claim)
local unfinished = tonumber(ARGV[#ARGV])
local stands = unfinished > 0 and { 'PX', unfinished } or {}
if may(moves, 'absent', claim.state) and redis.call('SET', KEYS[1], raw, 'NX', unpack(stands)) then
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
  if ARGV[6] ~= '' then redis.call('SET', KEYS[3], ARGV[6]) end
  list(now, claim)
  if KEYS[10] then
    enlist(now, KEYS[7], KEYS[8], ARGV[8])
    tally(now, KEYS[9], 'started')
  end
  redis.call('PUBLISH', CHANNEL, ARGV[1])
  return { 1, now, raw, known }
end

local _, there, stop = open()
if stop then return told(stop) end
if there.token ~= ARGV[2] or there.state ~= ARGV[7] or there.epoch ~= 1 then return told(unchanged(now, there)) end
there.lease = claim.lease
return told(write(now, there, 0, true))
