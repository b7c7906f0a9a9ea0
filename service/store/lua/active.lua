-- active: the active jobs of a sandbox. Changes nothing.
--
-- call     KEYS active
-- KEYS[1]  oncebox:{shard}:active:<sandbox>   set of ids

return redis.call('SMEMBERS', KEYS[1])
