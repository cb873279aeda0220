-- Claims the units of a batch, sorted so that two batches never deadlock; the primary key is the referee. The lock time-out
-- holds for this statement only; the handler's limits are set behind it, in the same round trip. From here to the guard
-- nothing commits: see the trigger marker_guarded.
--
-- Every claim also takes an advisory lock, if it can. One busy key must not stall a batch: units whose lock another
-- transaction holds are left out, and come back as busy. Which ones are fresh is told only where not all are.
with armed as materialized (
    select
        current_setting('lock_timeout') as lock_timeout_before,
        set_config('lock_timeout', $8, true),
        set_config('oncebox.guarded', 'on', true)
), unit as materialized (
    select
        u.kind, u.key, u.long_key, u.fingerprint, u.waited_ms, u.n,
        pg_try_advisory_xact_lock(u.lock_id) as free
    from unnest($2::text[], $3::bytea[], $4::bytea[], $5::int8[], $6::int8[], $11::int8[])
        with ordinality as u(kind, key, long_key, fingerprint, waited_ms, lock_id, n)
), fresh as (
    insert into "{schema}".marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
    select
        $1, u.kind, u.key, u.long_key, u.fingerprint, 'done',
        clock_timestamp() + ($7::int8 - u.waited_ms) * interval '1 ms',
        clock_timestamp() + $7::int8 * interval '1 ms'
    from armed cross join unit u
    where u.free
    order by u.kind collate "C", u.key
    on conflict do nothing
    returning kind, key
)
select
    case
        when (select count(*) from fresh) < cardinality($3::bytea[])
        then array(select u.n from unit u join fresh f on (u.kind, u.key) = (f.kind, f.key))
    end as fresh,
    array(select u.n from unit u where not u.free) as busy,
    pg_current_xact_id()::text as transaction_id,
    pg_backend_pid() as backend,
    set_config('lock_timeout', coalesce($12, (select lock_timeout_before from armed)), true),
    set_config('statement_timeout', $9, true),
    set_config('idle_in_transaction_session_timeout', $10, true)
