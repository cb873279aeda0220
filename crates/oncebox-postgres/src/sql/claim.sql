-- Claims units, sorted so that two batches never deadlock; the primary key is the referee. The lock time-out holds
-- for this statement only; the handler's limits are set behind it, in the same round trip. From here to the guard
-- nothing commits: see the trigger marker_guarded.
--
-- Every claim also takes an advisory lock, if it can. One busy key must not stall a batch: where $12 is set, units whose
-- lock another transaction holds are left out, and come back as busy.
with armed as materialized (
    select
        current_setting('lock_timeout') as lock_timeout_before,
        set_config('lock_timeout', $8, true),
        set_config('oncebox.guarded', 'on', true)
), unit as materialized (
    select
        u.handler, u.kind, u.key, u.long_key, u.fingerprint, u.waited_ms, u.n,
        pg_try_advisory_xact_lock(u.lock_id) as free
    from unnest($1::text[], $2::text[], $3::bytea[], $4::bytea[], $5::int8[], $6::int8[], $11::int8[])
        with ordinality as u(handler, kind, key, long_key, fingerprint, waited_ms, lock_id, n)
), fresh as (
    insert into "{schema}".marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
    select
        u.handler, u.kind, u.key, u.long_key, u.fingerprint, 'done',
        clock_timestamp() + ($7::int8 - u.waited_ms) * interval '1 ms',
        clock_timestamp() + $7::int8 * interval '1 ms'
    from armed cross join unit u
    where u.free or not $12
    order by u.handler collate "C", u.kind collate "C", u.key
    on conflict do nothing
    returning handler, kind, key
)
select
    coalesce(array_agg(u.n) filter (where f.key is not null), '{}') as fresh,
    coalesce(array_agg(u.n) filter (where $12 and not u.free), '{}') as busy,
    pg_current_xact_id()::text as transaction_id,
    pg_backend_pid() as backend,
    set_config('lock_timeout', coalesce($13, (select lock_timeout_before from armed)), true),
    set_config('statement_timeout', $9, true),
    set_config('idle_in_transaction_session_timeout', $10, true)
from unit u left join fresh f on (u.handler, u.kind, u.key) = (f.handler, f.kind, f.key)
