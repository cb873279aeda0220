-- Takes a process for dead that was silent for longer than its lease: its handlers, and how many messages it can have had
-- in hand.
delete from oncebox_process
where id = ?1 and heartbeat + lease_ms < cast(unixepoch('subsec') * 1000 as integer) + ?2
returning handlers, in_hand
