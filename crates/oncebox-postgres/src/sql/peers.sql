-- All processes but one. While the server was down it could hear nobody.
select
    p.id, p.name, p.handlers, p.beats,
    least(
        abs(floor(extract(epoch from clock_timestamp() - p.heartbeat) * 1000)::int8 + $2::int8),
        floor(extract(epoch from clock_timestamp() - pg_postmaster_start_time()) * 1000)::int8 + $2::int8
    ) as silent_ms,
    floor(extract(epoch from p.lease) * 1000)::int8 as lease_ms
from "{schema}".process p
where p.id <> $1
order by p.started_at, p.id
