-- The first ?3 tasks of handler ?1, which is ordered as ?5 says, in lane ?2 that are due, the longest due first; and whether
-- each is free to run: the head of its ordering key, or without one.
select near.pos, near.order_by, near.order_by is null or not (
    exists (
        select 1 from oncebox_task earlier
        where earlier.handler = ?1 and earlier.lane = ?2 and earlier.order_by = near.order_by
          and earlier.pos < near.pos
          and not (earlier.scheduled and earlier.due_at > cast(unixepoch('subsec') * 1000 as integer) + ?4)
    )
    or ?5 = 'hold' and exists (
        select 1 from oncebox_dead d
        where d.handler = ?1 and d.lane = ?2 and d.order_by = near.order_by and d.pos < near.pos
    )
)
from (
    select t.pos, t.order_by from oncebox_task t
    where t.handler = ?1 and t.lane = ?2 and t.owner is null
      and t.due_at <= cast(unixepoch('subsec') * 1000 as integer) + ?4
    order by t.due_at, t.pos
    limit ?3
) as near
