-- Whether anything was ever migrated.
select count(*) from pg_catalog.pg_tables where schemaname = $1 and tablename = 'version'
