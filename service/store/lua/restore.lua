-- restore: write the claim of a job that was found by its fence after the data was lost, where there is none.
--
-- call     KEYS claim output request streams [looks active tenants sandboxs minutes]
--          ARGV id token state attempt body horizon_ms
-- from     absent
-- to       running, ended: epoch 1, no owner, no TTL
-- A claim at its first revision with this very token is our own write whose answer was lost: done.

local moves = { absent = "running ended" }

local now = clock()
local claim = {
  state = ARGV[3], epoch = 1, attempt = tonumber(ARGV[4]), revision = 1, lease = 0, cancel = '0', token = ARGV[2],
  owner = '-', body = ARGV[5],
}
local raw = form(claim)
if may(moves, 'absent', claim.state) and redis.call('SET', KEYS[1], raw, 'NX') then
  redis.call('DEL', KEYS[2], KEYS[3], KEYS[4])
  list(now, claim)
  if KEYS[8] then enlist(now, KEYS[7], KEYS[8], ARGV[6]) end
  redis.call('PUBLISH', CHANNEL, ARGV[1])
  return { 1, now, raw }
end

local _, there, stop = open()
if stop then return stop end
if there.token == ARGV[2] and there.revision == 1 then return { 1, now, there.raw } end
return unchanged(now, there)
