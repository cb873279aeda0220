-- Messages of the log: append and prune.

-- name: begin_append
-- What an append needs to know of its lane: how many lanes there are, the newest position in this one, and
-- the time now.
-- Index: primary key of oncebox_message.
select
    l.lanes,
    coalesce((select m.pos from oncebox_message m where m.lane = ?1 order by m.pos desc limit 1), 0),
    cast(unixepoch('subsec') * 1000 as integer) + ?2
from oncebox_layout l;

-- name: append
-- Appends a message. The last line is repeated for more of them; so the parameters have no numbers. In order:
-- lane, position, kind, key, long key, ordering key, target, headers, occurred, due, received, id, body.
-- Index: primary key of oncebox_message.
insert into oncebox_message (
    lane, pos, kind, key, long_key, order_by, target, headers, occurred_at, due_at, received_at, message_id, body
)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: note_kinds
-- Notes kinds, a JSON array, of which messages were accepted at ?2.
-- Index: primary key of oncebox_kind.
insert into oncebox_kind (kind, first_seen_at)
select value, ?2 from json_each(?1) where true
on conflict do nothing;

-- name: prune
-- Deletes messages that no handler needs any more, among the ?3 positions behind ?2: received before ?4, and passed
-- by all handlers and relays that read them, of which there is one at least, or for one handler alone. Relays keep them for a time
-- of their own; ?5 is the offset of the clock. Without ?4 only those that no handler reads. The lane's newest one stays, so that
-- positions are never given twice.
-- Index: primary keys of oncebox_message, oncebox_progress; oncebox_dead_message, oncebox_task_message.
with passed as materialized (
    select
        h.mode = 'relay' as is_relay, k.value as kind, coalesce((
            select p.pos from oncebox_progress p
            where p.handler = h.id and p.lane = ?1
            order by p.epoch desc, p.pos desc limit 1
        ), 0) as pos,
        case when h.keep_ms is null then 9223372036854775807
            else cast(unixepoch('subsec') * 1000 as integer) + ?5 - h.keep_ms
        end as keep_from
    from oncebox_handler h
    cross join json_each(h.kinds) k
    where h.state in ('active', 'paused') and h.mode in ('stored', 'mixed', 'relay')
)
delete from oncebox_message
where lane = ?1 and pos in (
    select looked.pos
    from (
        select m.pos, m.kind, m.target, m.message_id, m.received_at from oncebox_message m
        where m.lane = ?1 and m.pos > ?2
        order by m.pos
        limit ?3
    ) as looked
    where looked.received_at < coalesce(?4, (
        select max(cast(unixepoch('subsec') * 1000 as integer) + ?5 - h.keep_ms) from oncebox_handler h
        where h.mode = 'relay' and h.state in ('active', 'paused')
      ))
      and looked.pos < (select m.pos from oncebox_message m where m.lane = ?1 order by m.pos desc limit 1)
      and case when looked.target is null then (
        select looked.pos <= min(r.pos) and looked.received_at < min(r.keep_from) and not (?4 is null and min(r.is_relay) = 0)
        from passed r
        where case when r.is_relay then looked.message_id is not null and looked.kind glob r.kind else r.kind = looked.kind end
      ) else ?4 is not null end
      and not exists (select 1 from oncebox_task t where t.lane = ?1 and t.pos = looked.pos)
      and not exists (select 1 from oncebox_dead d where d.lane = ?1 and d.pos = looked.pos)
);

-- name: prune_next
-- Where a later step of pruning goes on: behind the ?3 positions of this one, unless it met a message from ?4
-- or later, or the end of the lane. Without ?4 the relay that keeps messages for the shortest time decides; ?5 is the offset of the
-- clock.
-- Index: primary key of oncebox_message. Rows: all handlers, which are few.
select max(looked.pos)
from (
    select m.pos, m.received_at from oncebox_message m
    where m.lane = ?1 and m.pos > ?2
    order by m.pos
    limit ?3
) as looked
having count(*) = ?3 and max(looked.received_at) < coalesce(?4, (
    select max(cast(unixepoch('subsec') * 1000 as integer) + ?5 - h.keep_ms) from oncebox_handler h
    where h.mode = 'relay' and h.state in ('active', 'paused')
));
