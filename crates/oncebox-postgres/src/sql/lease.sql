-- Messages that the process $11 runs outside of a transaction from now on, under one new fence. No row if the process is not known
-- any more; whoever takes it for dead, or lets it go, waits for this transaction.
with known as materialized (
    select p.id from "{schema}".process p where p.id = $11 for key share
), fence as materialized (
    select nextval('"{schema}".fence') as fence from known
), leased as (
    insert into "{schema}".task (
        handler, lane, pos, order_by, failures, due_at, error, attempts, body, crashes, owner, fence
    )
    select
        $1, $2, v.pos, v.order_by, v.failures, clock_timestamp() + $10::int8 * interval '1 ms',
        v.attempts::jsonb -> -1 ->> 'error', coalesce(v.attempts::jsonb, '[]'), v.body, v.crashes, $11, f.fence
    from unnest(
        $3::int8[], $4::bytea[], $5::int4[], $6::int8[], $7::text[], $8::text[], $9::bytea[], $12::int4[]
    ) as v(pos, order_by, failures, due_in_ms, error, attempts, body, crashes)
    cross join fence f
)
select fence from fence
