-- page_jobs: jobs newest first, from a moment on. Changes nothing.
--
-- call     KEYS jobs...  ARGV at limit
-- KEYS     oncebox:{shard}:jobs:<tenant> (on a cluster one a call), or oncebox:{shard}:jobs:<tenant>:<sandbox>
-- ARGV[1]  ms, or '' for the newest
-- answer   for each key {all ids of exactly that moment; id, ms, id, ms... before it, newest first, at most limit}

local found = {}
for i, key in ipairs(KEYS) do
  if ARGV[1] == '' then
    found[i] = { {}, redis.call('ZREVRANGEBYSCORE', key, '+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2]) }
  else
    found[i] = {
      redis.call('ZREVRANGEBYSCORE', key, ARGV[1], ARGV[1]),
      redis.call('ZREVRANGEBYSCORE', key, '(' .. ARGV[1], '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2]),
    }
  end
end
return found
