-- Takes a process for dead whose end was seen (?3), or that was silent for longer than its lease: its handlers, and how many messages
-- it can have had in hand. Its last sign of life may lie in the future, by a clock that was ahead.
delete from oncebox_process
where id = ?1 and (?3 or abs(cast(unixepoch('subsec') * 1000 as integer) + ?2 - heartbeat) > lease_ms)
returning handlers, in_hand
