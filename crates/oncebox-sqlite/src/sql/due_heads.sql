-- Tasks of handler ?1, which is ordered as ?5 says, in lane ?2 that are due and not held back: at most ?3, the longest due
-- first. Of each ordering key only the head, which is its first task but for those that are scheduled for later. From key to
-- key it goes along the index, so that what is parked behind a head costs nothing.
with recursive now(ms) as materialized (
    select cast(unixepoch('subsec') * 1000 as integer) + ?4
), key(order_by) as (
    select (
        select t.order_by from oncebox_task t
        where t.handler = ?1 and t.lane = ?2 and t.order_by is not null
        order by t.order_by limit 1
    )
    union all
    select (
        select t.order_by from oncebox_task t
        where t.handler = ?1 and t.lane = ?2 and t.order_by > key.order_by
        order by t.order_by limit 1
    )
    from key where key.order_by is not null
), free as (
    select t.pos, t.due_at
    from oncebox_task t indexed by oncebox_task_free
    where t.handler = ?1 and t.lane = ?2 and t.owner is null and t.order_by is null
      and t.due_at <= cast(unixepoch('subsec') * 1000 as integer) + ?4
    order by t.due_at, t.pos
    limit ?3
)
select head.pos, key.order_by, head.due_at
from now
cross join key
cross join oncebox_task head on head.handler = ?1 and head.lane = ?2 and head.pos = (
    select t.pos from oncebox_task t
    where t.handler = ?1 and t.lane = ?2 and t.order_by = key.order_by
      and not (t.scheduled and t.due_at > now.ms)
    order by t.pos limit 1
)
where head.owner is null and head.due_at <= now.ms
  and not (?5 = 'hold' and exists (
    select 1 from oncebox_dead d
    where d.handler = ?1 and d.lane = ?2 and d.order_by = key.order_by and d.pos < head.pos
  ))
union all
select free.pos, null, free.due_at from free
order by 3, 1
limit ?3
