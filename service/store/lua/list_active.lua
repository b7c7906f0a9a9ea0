-- list_active: list a job as an active one of its sandbox.
--
-- call     KEYS active  ARGV id
-- KEYS[1]  oncebox:active:<sandbox>   set of ids

return redis.call('SADD', KEYS[1], ARGV[1])
