-- Deletes messages of one lane that nobody needs any more; see the function.
select deleted, next from "{schema}".prune($1, $2, $3, to_timestamp($4::int8 / 1000.0))
