-- Waits for the lanes of the dead letters that are meant, by the conditions of act.sql: which ones, with the last letter there
-- and the number of all letters. By the time that the locks are had, others may have dealt with some of them.
with meant as materialized (
    select d.handler, d.lane, d.pos
    from "{schema}".dead d
    join "{schema}".handler h on h.id = d.handler
    join "{schema}".message m on m.lane = d.lane and m.pos = d.pos
    where h.state <> 'removed' and ($1::text is null or h.name = $1)
      and ($2::text is null or m.kind = $2)
      and ($3::int4 is null or (d.lane = $3 and d.pos = $4))
      and ($5::text is null or position(lower($5) in lower(d.error)) > 0)
      and ($6::int8 is null or d.died_at >= to_timestamp($6 / 1000.0))
      and ($7::int8 is null or d.died_at < to_timestamp($7 / 1000.0))
      and ($9::int4 is null or (d.handler, d.lane, d.pos) > ($9, $10::int4, $11::int8))
    order by d.handler, d.lane, d.pos
    limit $8::int8
)
select
    l.handler, l.lane,
    (select max(m.pos) from meant m where m.handler = l.handler and m.lane = l.lane),
    (select count(*) from meant)
from "{schema}".lane l
where (l.handler, l.lane) in (select m.handler, m.lane from meant m)
order by l.handler, l.lane
for update of l
