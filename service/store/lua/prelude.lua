-- What the scripts of a claim share. The loader puts this text before each of them.
--
-- KEYS[1]  oncebox:{shard}:claim:<id>     the claim: one string, a header line and the body
-- KEYS[2]  oncebox:{shard}:output:<id>    the output kept beside it (see output.lua)
-- KEYS[3]  oncebox:{shard}:request:<id>   the request that made it
-- KEYS[4]  oncebox:{shard}:streams:<id>   the named outputs of an exec; of a job with its streams apart its stderr, in
--                                         the form of output.lua
-- KEYS[5]  oncebox:{shard}:looks          jobs only: the active ones of the shard by their next look; zset, id by ms
-- KEYS[6]  oncebox:{shard}:active:<sandbox>   jobs only: the active ones of the sandbox; a set of ids
-- ARGV[1]  the id, which is what is published
-- the last  ms for which a claim stands that nobody finishes: those of sandboxes; 0, for good: those of jobs
--
-- The header: 1 <state> <epoch> <attempt> <revision> <lease until, ms> <cancel 0|1> <token> <owner>\n
-- where 1 is the version of the form. A claim of another version is left alone.
--
-- Each script answers {outcome, now in ms, the claim as it now stands or nil}; outcome is
--   1 done, 0 nothing changed, -1 nothing changed: the claim is of a form that can't be read here.

local CHANNEL = 'oncebox:changes'

-- States whose claim may end by itself. The others of a job must not: the next retry would run the command again. A
-- sandbox's ends long after any retry and any create: who comes then looks for it at the engine first.
local MORTAL = { refused = true, voided = true, closed = true, done = true }

-- States that a lease holds; their next look is when it has run out.
local LEASED = { claimed = true, dispatched = true }
local LATE = 100

local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end

local function parse(raw)
  local state, epoch, attempt, revision, lease, cancel, token, owner, at =
    string.match(raw, '^1 (%l+) (%d+) (%d+) (%d+) (%d+) ([01]) (%S+) (%S+)\n()')
  if not state then return nil end
  return {
    raw = raw, was = state, state = state, epoch = tonumber(epoch), attempt = tonumber(attempt),
    revision = tonumber(revision), lease = tonumber(lease), cancel = cancel, token = token, owner = owner,
    body = string.sub(raw, at),
  }
end

local function form(claim)
  return string.format(
    '1 %s %.0f %.0f %.0f %.0f %s %s %s\n',
    claim.state, claim.epoch, claim.attempt, claim.revision, claim.lease, claim.cancel, claim.token, claim.owner
  ) .. claim.body
end

-- The time and the claim; or a third value, the answer to give where there is no claim to work on.
local function open()
  local now = clock()
  local raw = redis.call('GET', KEYS[1])
  if not raw then return now, nil, { 0, now, false } end
  local claim = parse(raw)
  if not claim then return now, nil, { -1, now, raw } end
  return now, claim, nil
end

-- Whether the table of a script allows the step. A table: from = "to to ...".
local function may(moves, from, to)
  local targets = moves[from]
  return targets ~= nil and string.find(' ' .. targets .. ' ', ' ' .. to .. ' ', 1, true) ~= nil
end

-- ARGV[2], ARGV[3]: the owner's token and epoch.
local function owned(claim)
  return claim.token == ARGV[2] and claim.epoch == tonumber(ARGV[3])
end

-- ARGV[2], ARGV[3]: the token and the revision that a poller saw.
local function as_seen(claim)
  return claim.token == ARGV[2] and claim.revision == tonumber(ARGV[3])
end

local function unchanged(now, claim)
  return { 0, now, claim.raw }
end

-- A job stands in the lists of active ones for as long as its claim is active, by the very script that writes the claim:
-- it is never followed without being there, nor there without being followed. `look_in` ms, for a state without a lease.
local function list(now, claim, look_in)
  if not KEYS[6] then return end
  if MORTAL[claim.state] then
    redis.call('ZREM', KEYS[5], ARGV[1])
    redis.call('SREM', KEYS[6], ARGV[1])
  else
    local at = LEASED[claim.state] and claim.lease + LATE or now + tonumber(look_in or 0)
    redis.call('ZADD', KEYS[5], at, ARGV[1])
    redis.call('SADD', KEYS[6], ARGV[1])
  end
end

-- Counts, for a tenant, something that happened to a job in this minute; those of more than an hour ago go.
--
-- key      oncebox:{shard}:minutes:<tenant>   hash, "<minute> <what>" to a count; nil: nobody counts
local HOUR = 60
local function tally(now, key, what)
  if not key then return end
  local minute = math.floor(now / 60000)
  if redis.call('HINCRBY', key, string.format('%d %s', minute, what), 1) > 1 then return end
  for _, field in ipairs(redis.call('HKEYS', key)) do
    if (tonumber(string.match(field, '^%d+')) or 0) < minute - HOUR then redis.call('HDEL', key, field) end
  end
  redis.call('PEXPIRE', key, 2 * HOUR * 60000)
end

-- Lists a job for its tenant, by the server's time; one that is listed keeps its place. Entries older than the horizon
-- have no record any more, and go; so does a list that nobody adds to.
local function enlist(now, tenants, sandboxs, horizon)
  for _, key in ipairs({ tenants, sandboxs }) do
    redis.call('ZADD', key, 'NX', now, ARGV[1])
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now - tonumber(horizon))
    redis.call('PEXPIRE', key, horizon)
  end
end

-- Writes the claim in one SET, before anything else of the script is written: a full server refuses the first
-- write of a script or none. `ttl` in ms, 0 for none; it goes to what is kept beside the claim as well.
local function write(now, claim, ttl, no_message, look_in)
  claim.revision = claim.revision + 1
  local raw = form(claim)
  ttl = tonumber(MORTAL[claim.state] and ttl or ARGV[#ARGV])
  if ttl > 0 then
    redis.call('SET', KEYS[1], raw, 'PX', ttl)
    for i = 2, 4 do redis.call('PEXPIRE', KEYS[i], ttl) end
  else
    redis.call('SET', KEYS[1], raw)
    if MORTAL[claim.was] or MORTAL[claim.state] then
      for i = 2, 4 do redis.call('PERSIST', KEYS[i]) end
    end
  end
  list(now, claim, look_in)
  if not no_message then redis.call('PUBLISH', CHANNEL, ARGV[1]) end
  return { 1, now, raw }
end

-- Lists a recorded output with its size. Entries older than the horizon have ended by themselves; some go at each call.
--
-- times    oncebox:{shard}:outputs:times   zset, name by ms
-- sizes    oncebox:{shard}:outputs:sizes   hash, name to bytes; the field '' is their sum
local function note_output(now, times, sizes, name, size, horizon)
  local function set_size(name, size)
    local before = tonumber(redis.call('HGET', sizes, name) or 0)
    if size > 0 then redis.call('HSET', sizes, name, size) else redis.call('HDEL', sizes, name) end
    redis.call('HINCRBY', sizes, '', size - before)
  end
  -- First what a full server refuses: after a removal it would take the rest.
  redis.call('ZADD', times, now, name)
  set_size(name, size)
  for _, old in ipairs(redis.call('ZRANGEBYSCORE', times, '-inf', now - tonumber(horizon), 'LIMIT', 0, 10)) do
    redis.call('ZREM', times, old)
    set_size(old, 0)
  end
  -- Where nothing more is recorded, nobody takes out what has ended.
  for _, key in ipairs({ times, sizes }) do redis.call('PEXPIRE', key, horizon) end
end
