-- Waits for the lanes of the dead letters that are meant, by the conditions of act.sql: which ones.
select l.handler, l.lane from "{schema}".lane l
where (l.handler, l.lane) in (
    select c.handler, c.lane from (
        select d.handler, d.lane
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
    ) as c
)
order by l.handler, l.lane
for update
