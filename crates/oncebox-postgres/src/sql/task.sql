-- Tasks: messages that one handler runs later, or outside a transaction.

-- name: write_tasks
-- Messages that are to run later, each with one more failed try, if it was one.
-- Index: task_pkey.
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
cross join (select clock_timestamp() + $10::int8 * interval '1 ms' as at) as now;

-- name: lease
-- Messages that the process $13 runs outside of a transaction from now on, under one new fence. No row if the process is not known
-- any more; what removes the process waits for this transaction.
-- Index: process_pkey, task_pkey.
with known as materialized (
    select p.id from "{schema}".process p where p.id = $13 for key share
), fence as materialized (
    select nextval('"{schema}".fence') as fence from known
), leased as (
    insert into "{schema}".task (
        handler, lane, pos, order_by, failures, due_at, error, attempts, body, crashes, owner, fence
    )
    select
        $1, $2, v.pos, v.order_by, v.failures, clock_timestamp() + $10::int8 * interval '1 ms',
        v.attempts::jsonb -> -1 ->> 'error', coalesce(v.attempts::jsonb, '[]'), v.body, v.crashes, $13, f.fence
    from unnest(
        $3::int8[], $4::bytea[], $5::int4[], $6::int8[], $7::text[], $8::text[], $9::bytea[], $11::bool[], $12::int4[]
    ) as v(pos, order_by, failures, due_in_ms, error, attempts, body, scheduled, crashes)
    cross join fence f
)
select fence from fence;

-- name: task_attempts
-- Reads the failed attempts of tasks, with the number of each.
-- Index: task_pkey.
select v.n, t.attempts::text
from unnest($1::int4[], $2::int4[], $3::int8[]) with ordinality as v(handler, lane, pos, n)
join "{schema}".task t on (t.handler, t.lane, t.pos) = (v.handler, v.lane, v.pos);

-- name: complete
-- How tasks ended that ran outside of a transaction: of those that are still under their fence. The numbers of these.
-- Index: marker_pkey, task_pkey.
with v as materialized (
    select * from unnest(
        $1::int4[], $2::int4[], $3::int8[], $4::int8[], $5::text[], $6::int4[], $7::int8[], $8::text[],
        $9::text[], $10::text[], $11::bytea[], $12::bytea[], $14::text[]
    ) with ordinality as v(
        handler, lane, pos, fence, ended, failures, due_in_ms, error, marker_handler, marker_kind, marker_key, result,
        attempts, n
    )
), mine as materialized (
    select
        v.handler, v.lane, v.pos, v.ended, v.failures, v.due_in_ms, v.error, v.marker_handler, v.marker_kind,
        v.marker_key, v.result, v.n, t.order_by, t.body, t.error as last_error,
        "{schema}".add_attempt(coalesce(v.attempts::jsonb, t.attempts), v.failures, now.at, v.error) as attempts,
        now.at
    from v
    join "{schema}".task t on (t.handler, t.lane, t.pos, t.fence) = (v.handler, v.lane, v.pos, v.fence)
    cross join (select clock_timestamp() + $13::int8 * interval '1 ms' as at) as now
    for update of t
), gone as (
    delete from "{schema}".task t using mine m
    where (t.handler, t.lane, t.pos) = (m.handler, m.lane, m.pos) and m.ended in ('done', 'dead')
), again as (
    update "{schema}".task t
    set owner = null, fence = null, scheduled = false, failures = m.failures, attempts = m.attempts,
        error = coalesce(m.error, m.last_error), due_at = m.at + m.due_in_ms * interval '1 ms'
    from mine m
    where (t.handler, t.lane, t.pos) = (m.handler, m.lane, m.pos) and m.ended = 'retry'
), dead_letters as (
    insert into "{schema}".dead (handler, lane, pos, order_by, error, attempts, body, died_at)
    select m.handler, m.lane, m.pos, m.order_by, coalesce(m.error, ''), m.attempts, m.body, m.at
    from mine m where m.ended = 'dead'
), marked as (
    update "{schema}".marker k set state = 'done', processed_at = m.at
    from mine m
    where m.ended = 'done' and (k.handler, k.kind, k.key) = (m.marker_handler, m.marker_kind, m.marker_key)
      and k.state = 'spilled'
    returning k.handler, k.kind, k.key, m.result
), recorded as (
    insert into "{schema}".result (handler, kind, key, body)
    select k.handler, k.kind, k.key, k.result from marked k where k.result is not null
    on conflict do nothing
)
select m.n from mine m;

-- name: free_tasks
-- Frees the tasks that a process has in flight, and the lanes that it has leased.
-- Index: task_owner. Rows: all of lane, a few for each handler.
with lanes as (
    update "{schema}".lane set process = null where process = $1
)
update "{schema}".task
set owner = null, fence = null, due_at = least(due_at, clock_timestamp() + $2::int8 * interval '1 ms')
where owner = $1;
