-- What a handler still has to do in its mode: whether messages of its kinds wait in the log, whether some are set apart, and
-- whether keys are marked that were never accepted, or done although their messages are still to come.
with recursive lane(n) as (
    select 0 from oncebox_layout
    union all
    select n + 1 from lane where n + 1 < (select lanes from oncebox_layout)
), reached as materialized (
    select lane.n as lane, (
        select p.pos from oncebox_progress p
        where p.handler = ?1 and p.lane = lane.n
        order by p.epoch desc, p.pos desc limit 1
    ) as pos
    from lane
)
select
    exists (
        select 1 from reached
        cross join oncebox_message m on m.lane = reached.lane and m.pos > reached.pos
        where m.target is null
          and m.kind in (select k.value from oncebox_handler h cross join json_each(h.kinds) k where h.id = ?1)
    ),
    exists (select 1 from oncebox_task t where t.handler = ?1)
    or exists (select 1 from oncebox_dead d where d.handler = ?1),
    exists (
        select 1 from oncebox_handler h
        cross join oncebox_marker k on k.handler = h.origin
        where h.id = ?1 and not exists (
            select 1 from oncebox_marker a where a.handler = '@accept' and a.kind = k.kind and a.key = k.key
        )
    ),
    exists (
        select 1 from oncebox_handler h
        cross join oncebox_marker k on k.handler = h.origin and k.state = 'done'
        cross join oncebox_marker a on a.handler = '@accept' and a.kind = k.kind and a.key = k.key
        where h.id = ?1 and (
            a.pos > (select reached.pos from reached where reached.lane = a.lane)
            or exists (select 1 from oncebox_task t where t.handler = h.id and t.lane = a.lane and t.pos = a.pos)
        )
    )
