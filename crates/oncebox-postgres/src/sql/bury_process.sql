-- Takes a process for dead that has been silent for longer than its lease. No row if it is alive.
delete from "{schema}".process p
where p.id = $1 and p.heartbeat + p.lease < clock_timestamp() + $2::int8 * interval '1 ms'
returning p.handlers, p.in_hand
