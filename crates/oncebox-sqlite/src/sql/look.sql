-- Where there is work for these handlers, a JSON array of numbers: a row for each lane that has some, and
-- one, without a handler, that says in how many ms the next task is due where none is now. Of ordered handlers, tasks that
-- are held back do not count: as in due_near.sql, and where more than 256 are due, as in due_heads.sql.
with recursive lane(n) as (
    select 0 from oncebox_layout
    union all
    select n + 1 from lane where n + 1 < (select lanes from oncebox_layout)
), newest as materialized (
    select lane.n, (
        select m.pos from oncebox_message m where m.lane = lane.n order by m.pos desc limit 1
    ) as pos
    from lane
), now(ms) as materialized (
    select cast(unixepoch('subsec') * 1000 as integer) + ?2
), seen as materialized (
    select
        h.id as handler, h.ordered, newest.n as lane,
        coalesce(newest.pos > (
            select p.pos from oncebox_progress p
            where p.handler = h.id and p.lane = newest.n
            order by p.epoch desc, p.pos desc limit 1
        ), 0) as messages,
        case when h.ordered is null then exists (
            select 1 from oncebox_task t
            where t.handler = h.id and t.lane = newest.n and t.owner is null and t.due_at <= now.ms
        )
        else exists (
            select 1
            from (
                select t.pos, t.order_by from oncebox_task t
                where t.handler = h.id and t.lane = newest.n and t.owner is null and t.due_at <= now.ms
                order by t.due_at, t.pos
                limit 256
            ) as near
            where near.order_by is null or not (
                exists (
                    select 1 from oncebox_task earlier
                    where earlier.handler = h.id and earlier.lane = newest.n
                      and earlier.order_by = near.order_by and earlier.pos < near.pos
                      and not (earlier.scheduled and earlier.due_at > now.ms)
                )
                or h.ordered = 'hold' and exists (
                    select 1 from oncebox_dead d
                    where d.handler = h.id and d.lane = newest.n and d.order_by = near.order_by
                      and d.pos < near.pos
                )
            )
        )
        or exists (
            select 1 from oncebox_task t
            where t.handler = h.id and t.lane = newest.n and t.owner is null and t.due_at <= now.ms
            limit 1 offset 256
        )
        and (
            exists (
                select 1 from oncebox_task t indexed by oncebox_task_free
                where t.handler = h.id and t.lane = newest.n and t.owner is null and t.order_by is null
                  and t.due_at <= now.ms
            )
            or exists (
                with recursive key(order_by) as (
                    select (
                        select t.order_by from oncebox_task t
                        where t.handler = h.id and t.lane = newest.n and t.order_by is not null
                        order by t.order_by limit 1
                    )
                    union all
                    select (
                        select t.order_by from oncebox_task t
                        where t.handler = h.id and t.lane = newest.n and t.order_by > key.order_by
                        order by t.order_by limit 1
                    )
                    from key where key.order_by is not null
                )
                select 1
                from key
                cross join oncebox_task head on head.handler = h.id and head.lane = newest.n and head.pos = (
                    select t.pos from oncebox_task t
                    where t.handler = h.id and t.lane = newest.n and t.order_by = key.order_by
                      and not (t.scheduled and t.due_at > now.ms)
                    order by t.pos limit 1
                )
                where head.owner is null and head.due_at <= now.ms
                  and not (h.ordered = 'hold' and exists (
                    select 1 from oncebox_dead d
                    where d.handler = h.id and d.lane = newest.n and d.order_by = key.order_by
                      and d.pos < head.pos
                  ))
            )
        )
        end as tasks
    from json_each(?1) as wanted
    cross join oncebox_handler h on h.id = wanted.value and h.state = 'active'
    cross join newest
    cross join now
), next as (
    -- The first that could run then: in front of it only what is scheduled for later.
    select (
        select t.due_at from oncebox_task t
        where t.handler = s.handler and t.lane = s.lane and t.owner is null and t.due_at > now.ms
          and not (
            s.ordered is not null and t.order_by is not null and (
                exists (
                    select 1 from oncebox_task earlier
                    where earlier.handler = s.handler and earlier.lane = s.lane
                      and earlier.order_by = t.order_by and earlier.pos < t.pos
                      and not (earlier.scheduled and earlier.due_at > now.ms)
                )
                or s.ordered = 'hold' and exists (
                    select 1 from oncebox_dead d
                    where d.handler = s.handler and d.lane = s.lane and d.order_by = t.order_by and d.pos < t.pos
                )
            )
          )
        order by t.due_at limit 1
    ) - now.ms as due_in
    from seen s
    cross join now
    where not s.tasks
)
select
    s.handler, s.lane, s.messages, s.tasks,
    exists (
        select 1 from oncebox_careful c where c.handler = s.handler and c.lane = s.lane and c.messages_left > 0
    ), null
from seen s where s.messages or s.tasks
union all
select null, null, null, null, null, min(next.due_in) from next
