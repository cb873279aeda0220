-- Tasks of handler ?1 in lane ?2 that are due, at most ?3, with their messages. They are still to be removed.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers,
    coalesce(t.body, m.body), m.occurred_at, m.due_at, 0, max(cast(unixepoch('subsec') * 1000 as integer) + ?4 - m.received_at, 0),
    t.failures, t.attempts, t.body is not null
from oncebox_task t
cross join oncebox_message m on m.lane = t.lane and m.pos = t.pos
where t.handler = ?1 and t.lane = ?2 and t.owner is null
  and t.due_at <= cast(unixepoch('subsec') * 1000 as integer) + ?4
order by t.due_at, t.pos
limit ?3
