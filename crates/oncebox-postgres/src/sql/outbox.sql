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

-- name: outbox_size
-- The disk space of the outbox and of the messages in the log, with their indexes.
-- Rows: none of these tables.
select
    pg_total_relation_size('"{schema}".outbox') as outbox, pg_total_relation_size('"{schema}".message') as log,
    null::int8 as database;

-- name: waiting_messages
-- The oldest messages of the outbox.
-- Index: outbox_id.
select
    o.message_id, o.kind, o.key, o.order_by, o.headers, o.body,
    floor(extract(epoch from o.occurred_at) * 1000)::int8 as occurred_ms,
    floor(extract(epoch from o.due_at) * 1000)::int8 as due_ms,
    floor(extract(epoch from o.captured_at) * 1000)::int8 as captured_ms,
    floor(extract(epoch from clock_timestamp() - o.captured_at) * 1000)::int8 as waited_ms
from "{schema}".outbox o
order by o.id
limit $1::int8;

-- name: waiting_message
-- The message of the outbox with an id.
-- Rows: all, which are few while a mover runs.
select
    o.message_id, o.kind, o.key, o.order_by, o.headers, o.body,
    floor(extract(epoch from o.occurred_at) * 1000)::int8 as occurred_ms,
    floor(extract(epoch from o.due_at) * 1000)::int8 as due_ms,
    floor(extract(epoch from o.captured_at) * 1000)::int8 as captured_ms,
    floor(extract(epoch from clock_timestamp() - o.captured_at) * 1000)::int8 as waited_ms
from "{schema}".outbox o
where o.message_id = $1
order by o.id
limit 1;

-- name: find_published
-- Where the published message with an id sits; no row for one that was pruned.
-- Index: message_id.
select m.lane, m.pos from "{schema}".message m where m.message_id = $1 order by m.lane, m.pos limit 1;

-- name: unsent_messages
-- The oldest messages that a relay has not sent: its retries, and those ahead of its progress in each lane. Within a lane they
-- stay in their order: times of neighbours differ by less than the precision of their ages.
-- Index: handler_pkey, lane_pkey, message_pkey, progress_pkey, task_pkey.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body,
    floor(extract(epoch from m.occurred_at) * 1000)::int8 as occurred_ms,
    floor(extract(epoch from m.due_at) * 1000)::int8 as due_ms,
    greatest(floor(extract(epoch from m.due_at - clock_timestamp()) * 1000)::int8 - $3::int8, 0) as due_in_ms,
    greatest(floor(extract(epoch from clock_timestamp() - m.received_at) * 1000)::int8 + $3::int8, 0) as waited_ms,
    m.message_id
from "{schema}".handler h
join "{schema}".lane l on l.handler = h.id
cross join lateral (
    select p.pos from "{schema}".progress p
    where p.handler = h.id and p.lane = l.lane
    order by p.epoch desc, p.pos desc limit 1
) as progress
cross join lateral (
    (
        select t.pos from "{schema}".task t
        where t.handler = h.id and t.lane = l.lane and t.pos <= progress.pos
        order by t.pos limit $2::int8
    )
    union all
    (
        select n.pos from "{schema}".message n
        where n.lane = l.lane and n.pos > progress.pos and n.target is null
          and "{schema}".reads(h.mode, h.kinds, n.kind, n.message_id)
        order by n.pos limit $2::int8
    )
) as unsent
join "{schema}".message m on m.lane = l.lane and m.pos = unsent.pos
where h.id = $1
order by max(m.received_at) over (partition by m.lane order by m.pos), m.lane, m.pos
limit $2::int8;
