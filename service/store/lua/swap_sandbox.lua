-- swap_sandbox: remember a sandbox, where what is remembered is still what was read.
--
-- call     KEYS sandbox  ARGV seen body ttl_ms
-- KEYS[1]  oncebox:{shard}:sandbox:<sandbox>   its record
-- seen     '' for nothing
-- answer   1 where it was written

if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('PSETEX', KEYS[1], ARGV[3], ARGV[2])
return 1
