-- now: the server's time, ms. Changes nothing.
--
-- call     KEYS any
-- KEYS[1]  says which node of a cluster is asked

return clock()
