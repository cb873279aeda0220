-- Reads the markers of several units with their results, by primary key; rows of units that have one.
select
    u.n, m.handler, m.kind, m.key, m.long_key, m.fingerprint, m.state,
    floor(extract(epoch from m.received_at) * 1000)::int8 as received_ms,
    floor(extract(epoch from m.processed_at) * 1000)::int8 as processed_ms,
    (
        select r.body from "{schema}".result r
        where r.handler = m.handler and r.kind = m.kind and r.key = m.key
    ) as body
from unnest($1::text[], $2::text[], $3::bytea[]) with ordinality as u(handler, kind, key, n)
cross join lateral (
    select * from "{schema}".marker m
    where m.handler = u.handler and m.kind = u.kind and m.key = u.key
    limit 1
) as m
