-- All processes but one.
select
    p.id, p.name, p.handlers, p.beats,
    max(cast(unixepoch('subsec') * 1000 as integer) + ?2 - p.heartbeat, 0), p.lease_ms
from oncebox_process p
where p.id <> ?1
order by p.started_at, p.id
