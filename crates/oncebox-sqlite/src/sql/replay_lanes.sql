-- The lanes in which handler ?1 is to go back, and by which first message: the oldest, or the oldest received at ?2 or
-- later, or the one at position ?4 of lane ?3. Also how far it has come, and what it runs again on already.
with recursive lane(n) as (
    select 0 from oncebox_layout
    union all
    select n + 1 from lane where n + 1 < (select lanes from oncebox_layout)
), reached as materialized (
    select lane.n as lane, p.epoch, p.pos
    from lane
    cross join oncebox_progress p on (p.handler, p.lane, p.epoch, p.pos) = (
        select p.handler, p.lane, p.epoch, p.pos from oncebox_progress p
        where p.handler = ?1 and p.lane = lane.n
        order by p.epoch desc, p.pos desc limit 1
    )
    where ?3 is null or lane.n = ?3
), back as materialized (
    select
        reached.lane, reached.epoch, reached.pos,
        coalesce(?4, (
            select m.pos from oncebox_message m
            where m.lane = reached.lane and m.pos <= reached.pos and (?2 is null or m.received_at >= ?2)
            order by m.pos limit 1
        )) as first
    from reached
)
select back.lane, back.epoch, back.pos, max(back.first - 1, 0), r.after, r.until
from back
left join oncebox_replay r on r.handler = ?1 and r.lane = back.lane and r.epoch = back.epoch
where back.pos > max(back.first - 1, 0)
