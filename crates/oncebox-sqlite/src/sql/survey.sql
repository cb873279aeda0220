-- What operators read.

-- name: handler_statuses
-- All handlers, by the names that they have now, and how they are doing. The lag is counted in positions, and no message is counted.
-- Index: primary keys of oncebox_dead, oncebox_message, oncebox_progress, oncebox_task; unique name of oncebox_handler.
with recursive lane(n) as (
    select 0 from oncebox_layout
    union all
    select n + 1 from lane where n + 1 < (select lanes from oncebox_layout)
), reached as materialized (
    select
        h.id as handler, lane.n as lane,
        (select m.pos from oncebox_message m where m.lane = lane.n order by m.pos desc limit 1) as head,
        (
            select p.pos from oncebox_progress p
            where p.handler = h.id and p.lane = lane.n
            order by p.epoch desc, p.pos desc limit 1
        ) as pos
    from oncebox_handler h
    cross join lane
), behind as materialized (
    select
        r.handler, sum(max(r.head - r.pos, 0)) as lag, sum(r.pos) as passed,
        min((
            select m.received_at from oncebox_message m
            where m.lane = r.lane and m.pos > r.pos
            order by m.pos limit 1
        )) as oldest
    from reached r
    group by r.handler
)
select
    h.id, h.name, h.origin, h.kinds, h.mode, h.ordered, h.state, h.keep_ms,
    coalesce(b.lag, 0),
    max(cast(unixepoch('subsec') * 1000 as integer) + ?1 - b.oldest, 0),
    (select count(*) from oncebox_task t where t.handler = h.id),
    (select count(*) from oncebox_dead d where d.handler = h.id),
    coalesce(b.passed, 0)
from oncebox_handler h
left join behind b on b.handler = h.id
where h.state <> 'renamed'
order by h.name;

-- name: unhandled_kinds
-- Kinds of which messages were accepted, and that no handler takes from the log.
-- Rows: all kinds and handlers, which are few.
select k.kind, k.first_seen_at
from oncebox_kind k
where not exists (
    select 1 from oncebox_handler h
    cross join json_each(h.kinds) taken
    where h.state in ('active', 'paused') and h.mode in ('stored', 'mixed', 'relay') and (
        taken.value = k.kind
        or h.mode = 'relay' and k.kind glob taken.value
    )
)
order by k.kind;

-- name: pending
-- The next messages of one lane that wait for a handler.
-- Index: primary keys of oncebox_handler, oncebox_message, oncebox_progress, oncebox_replay.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body, m.occurred_at, m.due_at,
    max(m.due_at - (cast(unixepoch('subsec') * 1000 as integer) + ?4), 0),
    max(cast(unixepoch('subsec') * 1000 as integer) + ?4 - m.received_at, 0), 0, null, 0, 0,
    exists (
        select 1 from oncebox_replay r
        where r.handler = ?1 and r.lane = ?2 and m.pos > r.after and m.pos <= r.until
    ),
    0, 0
from oncebox_message m
cross join oncebox_handler h on h.id = ?1
where m.lane = ?2 and m.target is null
  and m.pos > (
    select p.pos from oncebox_progress p
    where p.handler = ?1 and p.lane = ?2
    order by p.epoch desc, p.pos desc limit 1
  )
  and case
        when h.mode in ('stored', 'mixed') then exists (select 1 from json_each(h.kinds) k where k.value = m.kind)
        when h.mode = 'relay' and m.message_id is not null
        then exists (select 1 from json_each(h.kinds) k where m.kind glob k.value)
    end
order by m.pos
limit ?3;

-- name: messages
-- Messages of a lane behind a position, in order.
-- Index: primary key of oncebox_message.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body, m.occurred_at, m.due_at,
    max(m.due_at - (cast(unixepoch('subsec') * 1000 as integer) + ?4), 0),
    max(cast(unixepoch('subsec') * 1000 as integer) + ?4 - m.received_at, 0), 0, null, 0, 0, 0, 0, 0,
    m.message_id, m.received_at
from oncebox_message m
where m.lane = ?1 and m.pos > ?2
order by m.pos
limit ?3;

-- name: message_states
-- What became of the messages of a lane behind a position and up to another, for each handler of their kind,
-- by name; or for the one handler of a spilled message, which is done when it has no task and no dead letter.
-- Index: primary keys of oncebox_dead, oncebox_message, oncebox_progress, oncebox_task; unique name of oncebox_handler.
select
    m.pos, h.name, d.error, t.failures, t.due_at, t.error,
    m.target is not null or coalesce(m.pos <= (
        select p.pos from oncebox_progress p
        where p.handler = h.id and p.lane = m.lane
        order by p.epoch desc, p.pos desc limit 1
    ), 0),
    h.id
from oncebox_message m
cross join oncebox_handler h
left join oncebox_dead d on d.handler = h.id and d.lane = m.lane and d.pos = m.pos
left join oncebox_task t on t.handler = h.id and t.lane = m.lane and t.pos = m.pos
where m.lane = ?1 and m.pos > ?2 and m.pos <= ?3
  and h.state in ('active', 'paused') and (
    m.target = h.id
    or m.target is null and case
        when h.mode in ('stored', 'mixed') then exists (select 1 from json_each(h.kinds) k where k.value = m.kind)
        when h.mode = 'relay' and m.message_id is not null
        then exists (select 1 from json_each(h.kinds) k where m.kind glob k.value)
    end
  )
order by m.pos, h.name;

-- name: find_message
-- Where the message of a kind and key sits, by primary keys; no row if it was pruned.
-- Index: primary keys of oncebox_marker, oncebox_message.
select m.lane, m.pos
from oncebox_marker a
cross join oncebox_message m on m.lane = a.lane and m.pos = a.pos
where a.handler = '@accept' and a.kind = ?1 and a.key = ?2;

-- name: tasks
-- Tasks of one handler or all, the next first.
-- Index: primary keys of oncebox_handler, oncebox_message, oncebox_task.
select
    h.name, t.lane, t.pos, m.kind, m.key, m.long_key, t.failures, t.due_at, t.error, h.id
from oncebox_task t
cross join oncebox_handler h on h.id = t.handler
cross join oncebox_message m on m.lane = t.lane and m.pos = t.pos
where ?1 is null or h.name = ?1
order by t.due_at, t.handler, t.lane, t.pos
limit ?2;

-- name: task_waits
-- What a task waits for: a handler, its lane and position. ?4 is the offset of the clock.
-- Index: primary keys of oncebox_handler, oncebox_task; oncebox_dead_order, oncebox_task_order.
select
    case
        when t.owner is not null then 'running'
        when t.scheduled and t.due_at > cast(unixepoch('subsec') * 1000 as integer) + ?4 then 'scheduled'
        when h.ordered is not null and (
            exists (
                select 1 from oncebox_task earlier
                where earlier.handler = t.handler and earlier.lane = t.lane and earlier.order_by = t.order_by
                  and earlier.pos < t.pos and not (
                    earlier.scheduled and earlier.due_at > cast(unixepoch('subsec') * 1000 as integer) + ?4
                  )
            )
            or h.ordered = 'hold' and exists (
                select 1 from oncebox_dead earlier
                where earlier.handler = t.handler and earlier.lane = t.lane and earlier.order_by = t.order_by
                  and earlier.pos < t.pos
            )
        ) then 'parked'
        else 'turn'
    end
from oncebox_task t
cross join oncebox_handler h on h.id = t.handler
where t.handler = ?1 and t.lane = ?2 and t.pos = ?3;
