-- get: the claim and the server's time, in one step. Changes nothing.
--
-- call     KEYS claim
-- KEYS[1]  oncebox:{id}:claim

return { 1, clock(), redis.call('GET', KEYS[1]) }
