-- Sets the handler's limits where no claim has done so, and reads what the guard compares.
select
    pg_current_xact_id()::text as transaction_id,
    pg_backend_pid() as backend,
    set_config('statement_timeout', $1, true),
    set_config('idle_in_transaction_session_timeout', $2, true)
