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

-- name: outbox_size
-- The disk space of the outbox, the log and the whole database. SQLite knows only the last one without reading all pages.
-- Rows: one.
select null, null, pages.page_count * page.page_size from pragma_page_count() pages, pragma_page_size() page;

-- name: waiting_messages
-- The ?1 oldest messages of the outbox. ?2 is the offset of the clock.
-- Index: primary key of oncebox_outbox.
select
    o.id, cast(o.message_id as blob), cast(o.kind as blob), o.key, o.order_by, cast(o.headers as blob), o.body,
    o.occurred_at, o.due_at,
    cast(unixepoch('subsec') * 1000 as integer) + ?2 - o.captured_at, o.captured_at
from oncebox_outbox o
order by o.id
limit ?1;

-- name: waiting_message
-- The message of the outbox with the id ?1. ?2 is the offset of the clock.
-- Rows: all, which are few while a mover runs.
select
    o.id, cast(o.message_id as blob), cast(o.kind as blob), o.key, o.order_by, cast(o.headers as blob), o.body,
    o.occurred_at, o.due_at,
    cast(unixepoch('subsec') * 1000 as integer) + ?2 - o.captured_at, o.captured_at
from oncebox_outbox o
where lower(o.message_id) = ?1
order by o.id
limit 1;

-- name: find_published
-- Where the published message with an id sits; no row if it was pruned.
-- Index: oncebox_message_id.
select m.lane, m.pos from oncebox_message m where m.message_id = ?1 order by m.lane, m.pos limit 1;

-- name: unsent_messages
-- The oldest messages of one lane that a relay has not sent: its retries, and those ahead of its progress. A handler, a lane, how
-- many, and the offset of the clock.
-- Index: primary keys of oncebox_handler, oncebox_message, oncebox_progress, oncebox_task.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body, m.occurred_at, m.due_at,
    max(m.due_at - (cast(unixepoch('subsec') * 1000 as integer) + ?4), 0),
    max(cast(unixepoch('subsec') * 1000 as integer) + ?4 - m.received_at, 0), 0, null, 0, 0, 0, 0, 0,
    m.message_id
from (
    select * from (
        select t.lane, t.pos from oncebox_task t where t.handler = ?1 and t.lane = ?2 order by t.pos limit ?3
    )
    union
    select * from (
        select n.lane, n.pos
        from oncebox_message n
        cross join oncebox_handler h on h.id = ?1
        where n.lane = ?2 and n.target is null and n.message_id is not null
          and n.pos > (
            select p.pos from oncebox_progress p
            where p.handler = ?1 and p.lane = ?2
            order by p.epoch desc, p.pos desc limit 1
          )
          and exists (select 1 from json_each(h.kinds) k where n.kind glob k.value)
        order by n.pos
        limit ?3
    )
) u
cross join oncebox_message m on m.lane = u.lane and m.pos = u.pos
order by m.pos
limit ?3;
