-- Deletes a bounded batch of old accept markers whose messages are gone, along marker_accepted.
with due as materialized (
    select m.ctid from "{schema}".marker m
    where m.state = 'accepted' and m.processed_at < to_timestamp($1::int8 / 1000.0)
      and not exists (select from "{schema}".message g where g.lane = m.lane and g.pos = m.pos)
    order by m.processed_at
    limit $2::int8
    for update skip locked
)
delete from "{schema}".marker where ctid = any (array(select ctid from due))
