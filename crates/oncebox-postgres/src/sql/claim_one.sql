-- Claims one unit, and waits for whoever holds its marker; otherwise as a batch is claimed. The advisory lock, if it can be
-- had, tells batches that this key is busy.
with armed as materialized (
    select
        current_setting('lock_timeout') as lock_timeout_before,
        set_config('lock_timeout', $8, true),
        set_config('oncebox.guarded', 'on', true),
        pg_try_advisory_xact_lock($11)
), fresh as (
    insert into "{schema}".marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
    select
        $1, $2, $3, $4, $5, 'done',
        clock_timestamp() + ($7::int8 - $6::int8) * interval '1 ms',
        clock_timestamp() + $7::int8 * interval '1 ms'
    from armed
    on conflict do nothing
    returning key
)
select
    exists (select from fresh) as fresh,
    pg_current_xact_id()::text as transaction_id,
    pg_backend_pid() as backend,
    set_config('lock_timeout', coalesce($12, (select lock_timeout_before from armed)), true),
    set_config('statement_timeout', $9, true),
    set_config('idle_in_transaction_session_timeout', $10, true)
