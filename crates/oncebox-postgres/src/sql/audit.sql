-- The audit: what operators did.

-- name: audit
-- What operators did, newest first.
select floor(extract(epoch from at) * 1000)::int8 as at_ms, operator, action, handler, lane, pos, detail
from "{schema}".audit
order by id desc
limit $1::int8;
