-- The outbox: messages of transactions that publish, until the mover takes them to the log.

-- name: capture
-- Inserts messages into the outbox, in the caller's transaction and in their order.
-- Index: outbox_pkey.
insert into "{schema}".outbox (message_id, kind, key, fingerprint, order_by, headers, body, occurred_at, due_at)
select
    v.message_id, v.kind, v.key, v.fingerprint, v.order_by, v.headers, v.body,
    to_timestamp(v.occurred_ms / 1000.0), to_timestamp(v.due_ms / 1000.0)
from unnest(
    $1::uuid[], $2::text[], $3::bytea[], $4::int8[], $5::bytea[], $6::text[], $7::bytea[], $8::int8[], $9::int8[]
) with ordinality as v(message_id, kind, key, fingerprint, order_by, headers, body, occurred_ms, due_ms, n)
order by v.n;

-- name: is_in_transaction
-- Whether this is still the transaction that the engine began: otherwise a message would be published without its handler's effect.
-- Rows: none.
select pg_current_xact_id_if_assigned()::text is not distinct from $1 as is_own;

-- name: capture_one
-- Inserts one message into the outbox, in the caller's transaction. Without arrays it costs half as much.
-- Index: outbox_pkey.
insert into "{schema}".outbox (message_id, kind, key, fingerprint, order_by, headers, body, occurred_at, due_at)
values ($1, $2, $3, $4, $5, $6, $7, to_timestamp($8::int8 / 1000.0), to_timestamp($9::int8 / 1000.0));

-- name: move_captured
-- Moves committed messages to the log; see the function.
-- Index: lane_pkey, marker_pkey, message_pkey, outbox_id, outbox_pkey.
select moved, is_complete, history, next_xid, next_in_progress
from "{schema}".move_outbox($1, $2, $3, $4, $5, $6);

-- name: captured
-- How many messages wait in the outbox, and how long the oldest one has waited.
-- Rows: all, which are few while a mover runs.
select count(*) as waiting, floor(extract(epoch from clock_timestamp() - min(o.captured_at)) * 1000)::int8 as oldest_ms
from "{schema}".outbox o;
