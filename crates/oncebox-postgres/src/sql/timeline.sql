-- The number of the history that a primary writes: the first eight digits of its log's file names, in base sixteen.
select ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int8 as timeline
