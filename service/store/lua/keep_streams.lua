-- keep_streams: keep the outputs of an exec that still runs, and list them.
--
-- call     KEYS streams times sizes  ARGV packed ttl_ms horizon_ms

note_output(clock(), KEYS[2], KEYS[3], KEYS[1], #ARGV[1], ARGV[3])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
