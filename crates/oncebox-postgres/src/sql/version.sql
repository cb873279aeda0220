-- The version of the schema.
select max(version)::int8 from "{schema}".version
