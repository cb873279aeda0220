-- The next messages of one lane that wait for a handler.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body, m.occurred_at, m.due_at,
    max(m.due_at - (cast(unixepoch('subsec') * 1000 as integer) + ?4), 0),
    max(cast(unixepoch('subsec') * 1000 as integer) + ?4 - m.received_at, 0), 0, null, 0, 0,
    exists (
        select 1 from oncebox_replay r
        where r.handler = ?1 and r.lane = ?2 and m.pos > r.after and m.pos <= r.until
    ),
    0, 0
from oncebox_message m
where m.lane = ?2 and m.target is null
  and m.pos > (
    select p.pos from oncebox_progress p
    where p.handler = ?1 and p.lane = ?2
    order by p.epoch desc, p.pos desc limit 1
  )
  and m.kind in (select k.value from oncebox_handler h cross join json_each(h.kinds) k where h.id = ?1)
order by m.pos
limit ?3
