-- list_job: list a job under its tenant and its sandbox, by the server's time; one that is listed keeps its place.
--
-- call     KEYS jobs sandbox_jobs  ARGV id horizon_ms
-- KEYS[1]  oncebox:jobs:{tenant}             zset, id by ms
-- KEYS[2]  oncebox:jobs:{tenant}:<sandbox>   zset, id by ms
-- Entries older than the horizon have no record any more, and go; so does a list that nobody adds to.

local now = clock()
for i = 1, 2 do
  redis.call('ZADD', KEYS[i], 'NX', now, ARGV[1])
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', now - tonumber(ARGV[2]))
  redis.call('PEXPIRE', KEYS[i], ARGV[2])
end
return 1
