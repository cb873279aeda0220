-- A process is alive.
update oncebox_process
set heartbeat = cast(unixepoch('subsec') * 1000 as integer) + ?2, beats = beats + 1
where id = ?1
