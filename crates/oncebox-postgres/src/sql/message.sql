-- Messages of the log: append and prune.

-- name: append
-- Appends messages to one lane; see the function.
-- Index: lane_pkey, marker_pkey, message_pkey.
select n, is_known, lane, pos, fingerprint
from "{schema}".append($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
order by n;

-- name: spill
-- Spills a message for one handler; see the function.
-- Index: handler_pkey, lane_pkey, marker_pkey, message_pkey.
select * from "{schema}".spill(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20
);

-- name: announce
-- Notifies the processes that listen. In a transaction of its own: inside of another one, its commit would wait for all others that notify.
-- Rows: none.
select pg_notify($1, '');

-- name: prune
-- Deletes messages of one lane that no handler needs any more; see the function.
-- Index: dead_message, lane_pkey, message_pkey, progress_pkey, task_message. Rows: all handlers, which are few.
select deleted, next from "{schema}".prune($1, $2, $3, to_timestamp($4::int8 / 1000.0), $5);
