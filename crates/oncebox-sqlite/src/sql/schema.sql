-- The version of the schema.

-- name: has_version_table
-- Whether anything was ever migrated.
select count(*) from sqlite_schema where type = 'table' and name = 'oncebox_version';

-- name: version
-- The version of the schema.
select max(version) from oncebox_version;
