-- Messages set apart, for one handler or all, the next first.
select h.name, t.lane, t.pos, m.kind, m.key, m.long_key, t.failures, t.due_at, t.error
from oncebox_task t
cross join oncebox_handler h on h.id = t.handler
cross join oncebox_message m on m.lane = t.lane and m.pos = t.pos
where ?1 is null or h.name = ?1
order by t.due_at, t.handler, t.lane, t.pos
limit ?2
