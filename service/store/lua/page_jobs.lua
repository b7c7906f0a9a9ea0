-- page_jobs: jobs newest first, from a moment on. Changes nothing.
--
-- call     KEYS jobs  ARGV at limit
-- KEYS[1]  oncebox:jobs:{tenant} or oncebox:jobs:{tenant}:<sandbox>
-- ARGV[1]  ms, or '' for the newest
-- answer   {all ids of exactly that moment, descending; id, ms, id, ms... before it, at most limit}

if ARGV[1] == '' then
  return { {}, redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2]) }
end
return {
  redis.call('ZREVRANGEBYSCORE', KEYS[1], ARGV[1], ARGV[1]),
  redis.call('ZREVRANGEBYSCORE', KEYS[1], '(' .. ARGV[1], '-inf', 'WITHSCORES', 'LIMIT', 0, ARGV[2]),
}
