-- The version of the schema.
select max(version) from oncebox_version
