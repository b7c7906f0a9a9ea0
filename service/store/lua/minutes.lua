-- minutes: what happened to a tenant's jobs in the last hour, by minutes. Changes nothing.
--
-- call     KEYS minutes...
-- KEYS     oncebox:{shard}:minutes:<tenant>   (on a cluster one a call)
-- answer   the time, ms; then field, count, field, count...: a field is "<minute> <what>"

local found = { clock() }
for _, key in ipairs(KEYS) do
  for _, word in ipairs(redis.call('HGETALL', key)) do found[#found + 1] = word end
end
return found
