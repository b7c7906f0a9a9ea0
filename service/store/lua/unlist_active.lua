-- unlist_active: the job is no longer active in its sandbox.
--
-- call     KEYS active  ARGV id
-- KEYS[1]  oncebox:active:<sandbox>   set of ids

return redis.call('SREM', KEYS[1], ARGV[1])
