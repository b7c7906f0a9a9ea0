-- admit: count one request against a rate, where the rate allows it (GCRA: a leaky bucket kept as one time).
--
-- call     KEYS rate  ARGV interval_ms burst
-- KEYS[1]  oncebox:rate:<name>   the time, ms, at which everything that was let through so far is paid for
-- interval ms that one request costs, with a fraction; burst: requests that may come at once
-- answer   {1 let through or 0, requests that may still come at once, ms until the next may, ms until all may}

local now = clock()
local interval, burst = tonumber(ARGV[1]), tonumber(ARGV[2])
local whole = interval * burst
local paid = tonumber(redis.call('GET', KEYS[1]) or now)
-- Never further off than a used-up burst: a clock that was set back must not shut anybody out.
paid = math.min(math.max(paid, now), now + whole)
local after = paid + interval
if after - whole > now then return { 0, 0, math.ceil(after - whole - now), math.ceil(paid - now) } end
redis.call('PSETEX', KEYS[1], math.ceil(after - now), string.format('%.3f', after))
local left = math.floor((whole - (after - now)) / interval + 1e-6)
return { 1, left, left > 0 and 0 or math.ceil(after + interval - whole - now), math.ceil(after - now) }
