-- All handlers, by the names that they have now, and how they are doing. The lag is counted in positions, and no message is counted.
with recursive lane(n) as (
    select 0 from oncebox_layout
    union all
    select n + 1 from lane where n + 1 < (select lanes from oncebox_layout)
), reached as materialized (
    select
        h.id as handler, lane.n as lane,
        (select m.pos from oncebox_message m where m.lane = lane.n order by m.pos desc limit 1) as head,
        (
            select p.pos from oncebox_progress p
            where p.handler = h.id and p.lane = lane.n
            order by p.epoch desc, p.pos desc limit 1
        ) as pos
    from oncebox_handler h
    cross join lane
), behind as materialized (
    select
        r.handler, sum(max(r.head - r.pos, 0)) as lag, sum(r.pos) as passed,
        min((
            select m.received_at from oncebox_message m
            where m.lane = r.lane and m.pos > r.pos
            order by m.pos limit 1
        )) as oldest
    from reached r
    group by r.handler
)
select
    h.id, h.name, h.origin, h.kinds, h.mode, h.ordered, h.state,
    coalesce(b.lag, 0),
    max(cast(unixepoch('subsec') * 1000 as integer) + ?1 - b.oldest, 0),
    (select count(*) from oncebox_task t where t.handler = h.id),
    (select count(*) from oncebox_dead d where d.handler = h.id),
    coalesce(b.passed, 0)
from oncebox_handler h
left join behind b on b.handler = h.id
where h.state <> 'renamed'
order by h.name
