-- Reads one marker with its result, by primary key.
select m.handler, m.kind, m.key, m.long_key, m.fingerprint, m.state, m.received_at, m.processed_at, r.body
from oncebox_marker m
left join oncebox_result r on (r.handler, r.kind, r.key) = (m.handler, m.kind, m.key)
where m.handler = ?1 and m.kind = ?2 and m.key = ?3
