-- The version of the schema.

-- name: lock_migration
-- One migration at a time in this database; the number is the first eight bytes of "oncebox!".
-- Rows: none.
select pg_advisory_xact_lock(8029464472742492193);

-- name: has_version_table
-- Whether anything was ever migrated.
-- Rows: one, of the catalogue.
select count(*) from pg_catalog.pg_tables where schemaname = $1 and tablename = 'version';

-- name: version
-- The version of the schema.
-- Index: version_pkey.
select max(version)::int8 from "{schema}".version;
