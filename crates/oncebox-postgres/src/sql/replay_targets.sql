-- Where a replay begins, lane by lane: right before the first message that is meant. By time ($1), by place ($2, $3), or with what
-- is there.
select l.lane, first.pos - 1 as target
from "{schema}".lane l
cross join lateral (
    select min(m.pos) as pos from "{schema}".message m
    where m.lane = l.lane
      and ($1::int8 is null or m.received_at >= to_timestamp($1 / 1000.0))
      and ($3::int8 is null or m.pos >= $3)
) as first
where l.handler = 0 and ($2::int4 is null or l.lane = $2) and first.pos is not null
