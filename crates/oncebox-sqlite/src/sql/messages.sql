-- Messages of a lane behind a position, in order.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body, m.occurred_at, m.due_at,
    max(m.due_at - now.ms, 0), max(now.ms - m.received_at, 0), 0, null, 0,
    m.received_at
from (select cast(unixepoch('subsec') * 1000 as integer) + ?4 as ms) as now
cross join oncebox_message m
where m.lane = ?1 and m.pos > ?2
order by m.pos
limit ?3
