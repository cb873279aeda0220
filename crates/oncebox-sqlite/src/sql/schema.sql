-- The version of the schema.

-- name: has_version_table
-- Whether anything was ever migrated.
-- Rows: all of the catalogue, which are few.
select count(*) from sqlite_schema where type = 'table' and name = 'oncebox_version';

-- name: version
-- The version of the schema.
-- Index: primary key of oncebox_version.
select max(version) from oncebox_version;
