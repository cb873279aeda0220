-- What a server says of itself. No schema is named: there is no store yet.

-- name: server_state
-- Whether a server could be written to.
-- Rows: none.
select pg_is_in_recovery() as is_standby, current_setting('transaction_read_only')::bool as is_read_only;

-- name: timeline
-- The number of the history that a primary writes: the first eight digits of its log's file names, in base sixteen.
-- Rows: none.
select ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8 as timeline;
