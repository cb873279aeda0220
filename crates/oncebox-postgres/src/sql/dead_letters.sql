-- Dead letters with their messages, oldest first.
select
    h.name as handler, d.lane, d.pos, m.kind, m.key, m.long_key, coalesce(d.body, m.body) as body,
    floor(extract(epoch from m.received_at) * 1000)::int8 as received_ms,
    floor(extract(epoch from d.died_at) * 1000)::int8 as died_ms,
    d.error, d.attempts::text as attempts
from "{schema}".dead d
join "{schema}".handler h on h.id = d.handler
join "{schema}".message m on m.lane = d.lane and m.pos = d.pos
where ($1::text is null or h.name = $1)
  and ($2::text is null or m.kind = $2)
  and ($3::int4 is null or (d.lane = $3 and d.pos = $4))
  and ($5::text is null or position(lower($5) in lower(d.error)) > 0)
  and ($6::int8 is null or d.died_at >= to_timestamp($6 / 1000.0))
  and ($7::int8 is null or d.died_at < to_timestamp($7 / 1000.0))
order by d.died_at, d.handler, d.lane, d.pos
limit $8::int8
