-- Tasks of handler ?1, which is not ordered, in lane ?2 that are due: at most ?3, the longest due first.
select t.pos
from oncebox_task t
where t.handler = ?1 and t.lane = ?2 and t.owner is null
  and t.due_at <= cast(unixepoch('subsec') * 1000 as integer) + ?4
order by t.due_at, t.pos
limit ?3
