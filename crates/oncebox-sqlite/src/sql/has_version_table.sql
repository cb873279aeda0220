-- Whether anything was ever migrated.
select count(*) from sqlite_schema where type = 'table' and name = 'oncebox_version'
