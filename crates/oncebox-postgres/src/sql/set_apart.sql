-- Messages that are to run later, each with one more failed try, if it was one.
insert into "{schema}".task (
    handler, lane, pos, order_by, failures, due_at, error, attempts, body, scheduled, crashes
)
select
    $1, $2, v.pos, v.order_by, v.failures, now.at + v.due_in_ms * interval '1 ms',
    coalesce(v.error, v.attempts::jsonb -> -1 ->> 'error'),
    "{schema}".add_attempt(v.attempts::jsonb, v.failures, now.at, v.error),
    v.body, v.scheduled, v.crashes
from unnest(
    $3::int8[], $4::bytea[], $5::int4[], $6::int8[], $7::text[], $8::text[], $9::bytea[], $11::bool[], $12::int4[]
) as v(pos, order_by, failures, due_in_ms, error, attempts, body, scheduled, crashes)
cross join (select clock_timestamp() + $10::int8 * interval '1 ms' as at) as now
