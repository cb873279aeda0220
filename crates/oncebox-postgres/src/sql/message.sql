-- Messages of the log: append and prune.

-- name: append
-- Appends messages to one lane; see the function.
select n, is_known, lane, pos, fingerprint
from "{schema}".append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
order by n;

-- name: spill
-- Sets a message apart for one handler; see the function.
select * from "{schema}".spill(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20
);

-- name: announce
-- Tells those who listen. In a transaction of its own: inside of another one, its commit would wait for all others that notify.
select pg_notify($1, '');

-- name: prune
-- Deletes messages of one lane that nobody needs any more; see the function.
select deleted, next from "{schema}".prune($1, $2, $3, to_timestamp($4::int8 / 1000.0));
