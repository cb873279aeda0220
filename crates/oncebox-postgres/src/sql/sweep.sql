-- Deletes a bounded batch of old done markers with their results, oldest first, along marker_processed. Rows that
-- another sweep has in hand are left to it.
with due as materialized (
    select ctid from "{schema}".marker
    where state = 'done' and processed_at < to_timestamp($1::int8 / 1000.0)
    order by processed_at
    limit $2::int8
    for update skip locked
), swept as (
    delete from "{schema}".marker where ctid = any (array(select ctid from due))
    returning handler, kind, key
), results as (
    delete from "{schema}".result r using swept s
    where (r.handler, r.kind, r.key) = (s.handler, s.kind, s.key)
)
select count(*) from swept
