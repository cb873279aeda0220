-- Takes a process for dead that has been silent for longer than its lease. No row if it is alive. Its last
-- sign of life may lie in the future, by the clock of a server that was the primary before; whoever asks has not heard of it for a lease.
delete from "{schema}".process p
using (select clock_timestamp() + $2::int8 * interval '1 ms' as at) as now
where p.id = $1 and p.heartbeat not between now.at - p.lease and now.at + p.lease
returning p.handlers, p.in_hand
