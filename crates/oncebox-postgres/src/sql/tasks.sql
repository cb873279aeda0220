-- Messages set apart, the next first.
select
    h.name as handler, t.lane, t.pos, m.kind, m.key, m.long_key, t.failures,
    floor(extract(epoch from t.due_at) * 1000)::int8 as due_ms, t.error
from "{schema}".task t
join "{schema}".handler h on h.id = t.handler
join "{schema}".message m on m.lane = t.lane and m.pos = t.pos
where $1::text is null or h.name = $1
order by t.due_at, t.handler, t.lane, t.pos
limit $2::int8
