-- All processes but one.
select
    p.id, p.name, p.handlers, p.beats,
    abs(floor(extract(epoch from clock_timestamp() - p.heartbeat) * 1000)::int8 + $2::int8) as silent_ms,
    floor(extract(epoch from p.lease) * 1000)::int8 as lease_ms
from "{schema}".process p
where p.id <> $1
order by p.started_at, p.id
