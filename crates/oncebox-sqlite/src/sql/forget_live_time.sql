-- Forgets stretches of live time that ended before ?1.
delete from oncebox_live where until_ms < ?1
