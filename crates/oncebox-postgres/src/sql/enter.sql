-- A process begins to work.
insert into "{schema}".process (id, name, handlers, lease, in_hand, heartbeat, started_at)
select $1, $2, $3, $4::int8 * interval '1 ms', $5, now.at, now.at
from (select clock_timestamp() + $6::int8 * interval '1 ms' as at) as now
