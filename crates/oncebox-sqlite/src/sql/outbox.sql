-- The outbox: messages of transactions that publish, until the mover takes them to the log.

-- name: capture
-- Inserts a message into the outbox, in the caller's transaction. Several statements in one message write several; so the
-- parameters have no numbers. In order: offset of the clock, id, kind, key, ordering key, headers, body, occurred, due.
-- Index: primary key of oncebox_outbox.
insert into oncebox_outbox (captured_at, message_id, kind, key, order_by, headers, body, occurred_at, due_at)
values (cast(unixepoch('subsec') * 1000 as integer) + ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: has_captured
-- Whether there is a message in the outbox, and how many lanes the log has; no row without a log.
-- Rows: one at most.
select exists (select 1 from oncebox_outbox), l.lanes from oncebox_layout l;

-- name: move_captured
-- The first ?1 messages of the outbox, in the order in which they were published, and how long each has waited. ?2 is the offset of
-- the clock.
-- Index: primary key of oncebox_outbox.
select
    o.id, cast(o.message_id as blob), cast(o.kind as blob), o.key, o.order_by, cast(o.headers as blob), o.body,
    o.occurred_at, o.due_at,
    cast(unixepoch('subsec') * 1000 as integer) + ?2 - o.captured_at
from oncebox_outbox o
order by o.id
limit ?1;

-- name: remove_captured
-- Removes messages up to ?1 from the outbox.
-- Index: primary key of oncebox_outbox.
delete from oncebox_outbox where id <= ?1;

-- name: captured
-- How many messages wait in the outbox, and how long the oldest one has waited. ?1 is the offset of the clock.
-- Rows: all, which are few while a mover runs.
select count(*), cast(unixepoch('subsec') * 1000 as integer) + ?1 - min(o.captured_at) from oncebox_outbox o;
