-- Appends messages to one lane; see the function.
select n, is_known, lane, pos, fingerprint
from "{schema}".append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
order by n
