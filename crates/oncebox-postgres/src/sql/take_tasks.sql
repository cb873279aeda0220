-- Takes a lane for a handler, and its tasks that are due; see the function.
select * from "{schema}".take_tasks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
