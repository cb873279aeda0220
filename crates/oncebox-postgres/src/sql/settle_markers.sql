-- Sets markers that are there to a state.
update "{schema}".marker m
set state = $4, processed_at = clock_timestamp() + $5::int8 * interval '1 ms'
from unnest($1::text[], $2::text[], $3::bytea[]) as v(handler, kind, key)
where (m.handler, m.kind, m.key) = (v.handler, v.kind, v.key)
