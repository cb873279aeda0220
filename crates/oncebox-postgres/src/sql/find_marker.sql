-- Reads one marker with its result, by primary key.
select
    m.handler, m.kind, m.key, m.long_key, m.fingerprint, m.state,
    floor(extract(epoch from m.received_at) * 1000)::int8 as received_ms,
    floor(extract(epoch from m.processed_at) * 1000)::int8 as processed_ms,
    r.body
from "{schema}".marker m
left join "{schema}".result r on (r.handler, r.kind, r.key) = (m.handler, m.kind, m.key)
where m.handler = $1 and m.kind = $2 and m.key = $3
