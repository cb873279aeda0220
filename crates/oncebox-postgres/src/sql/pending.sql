-- The next messages that wait for a handler.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body,
    floor(extract(epoch from m.occurred_at) * 1000)::int8 as occurred_ms,
    floor(extract(epoch from m.due_at) * 1000)::int8 as due_ms,
    greatest(floor(extract(epoch from m.due_at - clock_timestamp()) * 1000)::int8 - $3::int8, 0) as due_in_ms,
    greatest(floor(extract(epoch from clock_timestamp() - m.received_at) * 1000)::int8 + $3::int8, 0) as waited_ms
from "{schema}".handler h
join "{schema}".lane l on l.handler = h.id
cross join lateral (
    select p.pos from "{schema}".progress p
    where p.handler = h.id and p.lane = l.lane
    order by p.epoch desc, p.pos desc limit 1
) as progress
cross join lateral (
    select * from "{schema}".message m
    where m.lane = l.lane and m.pos > progress.pos and m.target is null and m.kind = any (h.kinds)
    order by m.pos limit $2::int8
) as m
where h.id = $1
order by m.lane, m.pos
limit $2::int8
