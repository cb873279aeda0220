-- Reads the markers of several units with their results, by primary key; rows of units that have one. The units are a JSON
-- array of [handler, kind, key], keys in hex.
select
    m.handler, m.kind, m.key, m.long_key, m.fingerprint, m.state, m.received_at, m.processed_at, r.body,
    unit.key as n
from json_each(?1) as unit
cross join oncebox_marker m
    on m.handler = unit.value ->> 0 and m.kind = unit.value ->> 1 and m.key = unhex(unit.value ->> 2)
left join oncebox_result r on (r.handler, r.kind, r.key) = (m.handler, m.kind, m.key)
