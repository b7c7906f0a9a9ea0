-- What the scripts of a claim share. The loader puts this text before each of them.
--
-- KEYS[1]  oncebox:{id}:claim     the claim: one string, a header line and the body
-- KEYS[2]  oncebox:{id}:output    the output kept beside it (see output.lua)
-- KEYS[3]  oncebox:{id}:request   the request that made it
-- KEYS[4]  oncebox:{id}:streams   the named outputs of an exec
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

-- ARGV[2], ARGV[3]: the token and the revision that a follower saw.
local function as_seen(claim)
  return claim.token == ARGV[2] and claim.revision == tonumber(ARGV[3])
end

local function unchanged(now, claim)
  return { 0, now, claim.raw }
end

-- Writes the claim in one SET, before anything else of the script is written: a full server refuses the first
-- write of a script or none. `ttl` in ms, 0 for none; it goes to what is kept beside the claim as well.
local function write(now, claim, ttl, quiet)
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
  if not quiet then redis.call('PUBLISH', CHANNEL, ARGV[1]) end
  return { 1, now, raw }
end
