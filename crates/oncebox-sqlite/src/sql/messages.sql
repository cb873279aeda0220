-- Messages of a lane behind a position, in order.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body, m.occurred_at, m.due_at,
    max(m.due_at - (cast(unixepoch('subsec') * 1000 as integer) + ?4), 0),
    max(cast(unixepoch('subsec') * 1000 as integer) + ?4 - m.received_at, 0), 0, null, 0, 0, 0, 0, 0,
    m.received_at
from oncebox_message m
where m.lane = ?1 and m.pos > ?2
order by m.pos
limit ?3
