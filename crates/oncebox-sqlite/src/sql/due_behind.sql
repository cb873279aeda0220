-- The tasks that may follow a head, which is at ?4, of ordering key ?3: at most ?5, in their order, up to the first that is
-- not due or that a process runs, or to a dead letter where those hold (?7). Those that are scheduled for later are left
-- out.
with near as (
    select t.pos, t.owner is not null or t.due_at > cast(unixepoch('subsec') * 1000 as integer) + ?6 as is_blocked
    from oncebox_task t
    where t.handler = ?1 and t.lane = ?2 and t.order_by = ?3 and t.pos > ?4
      and not (t.scheduled and t.due_at > cast(unixepoch('subsec') * 1000 as integer) + ?6)
    order by t.pos
    limit ?5
)
select open.pos
from (select near.pos, max(near.is_blocked) over (order by near.pos) as is_cut from near) as open
where not open.is_cut
  and not (?7 = 'hold' and exists (
    select 1 from oncebox_dead d
    where d.handler = ?1 and d.lane = ?2 and d.order_by = ?3 and d.pos < open.pos
  ))
