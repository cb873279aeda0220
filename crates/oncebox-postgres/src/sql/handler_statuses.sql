-- All handlers and how they are doing. Of messages, only the newest of each lane and the first behind a progress are read.
select
    h.id, h.name, h.origin, h.kinds, h.mode, h.ordered, h.state,
    coalesce(sum(greatest(head.pos - progress.pos, 0)), 0)::int8 as lag,
    coalesce(sum(progress.pos), 0)::int8 as passed,
    floor(extract(epoch from clock_timestamp() - min(next.received_at)) * 1000)::int8 + $1::int8 as oldest_ms,
    (select count(*) from "{schema}".task t where t.handler = h.id) as tasks,
    (select count(*) from "{schema}".dead d where d.handler = h.id) as dead
from "{schema}".handler h
left join "{schema}".lane l on l.handler = h.id
left join lateral (
    select m.pos from "{schema}".message m where m.lane = l.lane order by m.pos desc limit 1
) as head on true
left join lateral (
    select p.pos from "{schema}".progress p
    where p.handler = h.id and p.lane = l.lane
    order by p.epoch desc, p.pos desc limit 1
) as progress on true
left join lateral (
    select m.received_at from "{schema}".message m
    where m.lane = l.lane and m.pos > progress.pos
    order by m.pos limit 1
) as next on true
where h.state <> 'renamed'
group by h.id
order by h.name
