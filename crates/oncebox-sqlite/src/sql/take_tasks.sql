-- The tasks of handler ?1 in lane ?2 at these positions, a JSON array, with their messages; in the order of the array, with
-- which the join begins. They are still to be removed.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers,
    coalesce(t.body, m.body), m.occurred_at, m.due_at, 0, max(cast(unixepoch('subsec') * 1000 as integer) + ?4 - m.received_at, 0),
    t.failures, t.attempts, t.body is not null, 0,
    m.target is null and exists (
        select 1 from oncebox_replay r
        where r.handler = ?1 and r.lane = ?2 and m.pos > r.after and m.pos <= r.until
    ),
    t.crashes,
    exists (
        select 1 from oncebox_marker k
        where k.handler = h.origin and k.kind = m.kind and k.key = m.key and k.state = 'spilled'
    )
from json_each(?3) as chosen
cross join oncebox_task t on t.handler = ?1 and t.lane = ?2 and t.pos = chosen.value
cross join oncebox_message m on m.lane = t.lane and m.pos = t.pos
cross join oncebox_handler h on h.id = t.handler
