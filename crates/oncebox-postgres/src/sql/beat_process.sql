-- A process is alive.
update "{schema}".process set beats = beats + 1, heartbeat = clock_timestamp() + $2::int8 * interval '1 ms' where id = $1
