-- Takes a lane for a handler, and what is to do there; see the function.
select * from "{schema}".take($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
