-- drop_output: forget a recorded output. One that is still being added to is left alone.
--
-- call     KEYS output
-- KEYS[1]  oncebox:{shard}:output:<id> or oncebox:{shard}:streams:<id>
-- answer   1 where it went

if string.sub(redis.call('GETRANGE', KEYS[1], 0, 0), 1, 1) == 'r' then return 0 end
return redis.call('UNLINK', KEYS[1])
