-- The audit: what operators did.

-- name: audit
-- What operators did, newest first.
-- Index: audit_pkey.
select floor(extract(epoch from at) * 1000)::int8 as at_ms, operator, action, handler, lane, pos, detail
from "{schema}".audit
order by id desc
limit $1::int8;

-- name: audit_handler
-- Writes down what an operator does with a handler.
-- Rows: inserts one.
insert into "{schema}".audit (at, operator, action, handler, detail)
values (clock_timestamp() + $5::int8 * interval '1 ms', $1, $2, $3, $4);
