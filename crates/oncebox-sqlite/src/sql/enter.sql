-- A process begins to work: id, name, handlers, lease in ms, messages in hand, offset of the clock.
insert into oncebox_process (id, name, handlers, lease_ms, in_hand, heartbeat, started_at)
select ?1, ?2, ?3, ?4, ?5, now.ms, now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ?6 as ms) as now
where true
on conflict (id) do update set
    name = excluded.name, handlers = excluded.handlers, lease_ms = excluded.lease_ms, in_hand = excluded.in_hand,
    beats = beats + 1, heartbeat = excluded.heartbeat
