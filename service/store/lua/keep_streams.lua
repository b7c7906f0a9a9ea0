-- keep_streams: keep the outputs of an exec that still runs, and list them.
--
-- call     KEYS streams times sizes  ARGV packed ttl_ms horizon_ms
-- KEYS[1]  oncebox:{shard}:streams:<id>
-- KEYS[2]  oncebox:{shard}:outputs:times, KEYS[3] oncebox:{shard}:outputs:sizes: see note_output

note_output(clock(), KEYS[2], KEYS[3], KEYS[1], #ARGV[1], ARGV[3])
redis.call('PSETEX', KEYS[1], ARGV[2], ARGV[1])
return 1
