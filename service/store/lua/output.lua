-- output: a slice of the output kept beside a claim. Changes nothing.
--
-- call     KEYS output  ARGV start end
-- KEYS[1]  oncebox:{shard}:output:<id>: a header of 38 bytes, then the bytes
--          r<first byte's offset in the log, 18 digits><0, 18 digits>\n    while the job lives: as they are
--          z<first byte's offset in the log, 18 digits><how many, 18 digits>\n    once closed: compressed, zlib
-- answer   {kind or nil, first, one past the last, offset of the slice, slice}; of a compressed one, all of it,
--          unless the slice asked for is empty

local HEADER = 38
local key = KEYS[1]
local kind, base, length = string.match(redis.call('GETRANGE', key, 0, HEADER - 1), '^(%l)(%d+)\n')
if not kind then return { false } end
base, length = tonumber(string.sub(base, 1, 18)), tonumber(string.sub(base, 19))
if kind == 'r' then length = redis.call('STRLEN', key) - HEADER end
local first = math.max(tonumber(ARGV[1]), base)
local last = math.min(tonumber(ARGV[2]), base + length)
local slice = ''
if last > first then
  if kind == 'r' then
    slice = redis.call('GETRANGE', key, HEADER + first - base, HEADER + last - base - 1)
  else
    first = base
    slice = redis.call('GETRANGE', key, HEADER, -1)
  end
end
return { kind, base, base + length, first, slice }
