-- Whether a server could be written to.
select pg_is_in_recovery() as is_standby, current_setting('transaction_read_only')::bool as is_read_only
