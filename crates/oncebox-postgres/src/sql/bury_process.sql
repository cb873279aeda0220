-- Takes a process for dead whose end was seen ($3), or that has been silent for longer than its lease. No row if it is alive. Its
-- last sign of life may lie in the future, by the clock of a server that was the primary before. While the server was down it could
-- hear nobody.
delete from "{schema}".process p
using (select clock_timestamp() + $2::int8 * interval '1 ms' as at) as now
where p.id = $1 and ($3 or (
    p.heartbeat not between now.at - p.lease and now.at + p.lease and pg_postmaster_start_time() < now.at - p.lease
))
returning p.handlers, p.in_hand
