-- Which transaction this is; and from here on it may commit, and the session write again. Fails in a transaction that was
-- broken by an error which the handler swallowed.
select
    pg_current_xact_id_if_assigned()::text,
    set_config('oncebox.guarded', 'off', true),
    set_config('default_transaction_read_only', null, false)
