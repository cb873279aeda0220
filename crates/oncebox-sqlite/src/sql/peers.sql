-- All processes but one. A sign of life in the future, by a clock that was ahead, is as old as it is far off.
select
    p.id, p.name, p.handlers, p.beats,
    abs(cast(unixepoch('subsec') * 1000 as integer) + ?2 - p.heartbeat), p.lease_ms
from oncebox_process p
where p.id <> ?1
order by p.started_at, p.id
