-- Takes back markers of messages that were claimed and not come to.
delete from "{schema}".marker m
using unnest($1::text[], $2::text[], $3::bytea[]) as v(handler, kind, key)
where (m.handler, m.kind, m.key) = (v.handler, v.kind, v.key)
