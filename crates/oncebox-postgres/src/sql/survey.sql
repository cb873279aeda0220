-- What operators read.

-- name: handler_statuses
-- All handlers and how they are doing. Of messages, only the newest of each lane and the first behind a progress are read.
-- Index: dead_pkey, handler_pkey, lane_pkey, message_pkey, progress_pkey, task_pkey.
select
    h.id, h.name, h.origin, h.kinds, h.mode, h.ordered, h.state,
    floor(extract(epoch from h.keep) * 1000)::int8 as keep_ms,
    coalesce(sum(greatest(head.pos - progress.pos, 0)), 0)::int8 as lag,
    coalesce(sum(progress.pos), 0)::int8 as passed,
    floor(extract(epoch from clock_timestamp() - min(next.received_at)) * 1000)::int8 + $1::int8 as oldest_ms,
    (select count(*) from "{schema}".task t where t.handler = h.id) as tasks,
    (select count(*) from "{schema}".dead d where d.handler = h.id) as dead
from "{schema}".handler h
left join "{schema}".lane l on l.handler = h.id
left join lateral (
    select m.pos from "{schema}".message m where m.lane = l.lane order by m.pos desc limit 1
) as head on true
left join lateral (
    select p.pos from "{schema}".progress p
    where p.handler = h.id and p.lane = l.lane
    order by p.epoch desc, p.pos desc limit 1
) as progress on true
left join lateral (
    select m.received_at from "{schema}".message m
    where m.lane = l.lane and m.pos > progress.pos
    order by m.pos limit 1
) as next on true
where h.state <> 'renamed'
group by h.id
order by h.name;

-- name: unhandled_kinds
-- Kinds of which messages were accepted and that no handler takes.
-- Rows: all kinds and handlers, which are few.
select k.kind, floor(extract(epoch from k.first_seen_at) * 1000)::int8 as since_ms
from "{schema}".kind k
where not exists (
    select from "{schema}".handler h
    where h.state in ('active', 'paused') and "{schema}".reads(
        h.mode, h.kinds, k.kind, '00000000-0000-0000-0000-000000000000'
    )
)
order by k.kind;

-- name: pending
-- The next messages that wait for a handler.
-- Index: handler_pkey, lane_pkey, message_pkey, progress_pkey, replay_pkey.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body,
    floor(extract(epoch from m.occurred_at) * 1000)::int8 as occurred_ms,
    floor(extract(epoch from m.due_at) * 1000)::int8 as due_ms,
    greatest(floor(extract(epoch from m.due_at - clock_timestamp()) * 1000)::int8 - $3::int8, 0) as due_in_ms,
    greatest(floor(extract(epoch from clock_timestamp() - m.received_at) * 1000)::int8 + $3::int8, 0) as waited_ms,
    exists (
        select from "{schema}".replay r
        where r.handler = h.id and r.lane = l.lane and r.epoch = progress.epoch and m.pos > r.after and m.pos <= r.until
    ) as replay
from "{schema}".handler h
join "{schema}".lane l on l.handler = h.id
cross join lateral (
    select p.epoch, p.pos from "{schema}".progress p
    where p.handler = h.id and p.lane = l.lane
    order by p.epoch desc, p.pos desc limit 1
) as progress
cross join lateral (
    select * from "{schema}".message m
    where m.lane = l.lane and m.pos > progress.pos and m.target is null
      and "{schema}".reads(h.mode, h.kinds, m.kind, m.message_id)
    order by m.pos limit $2::int8
) as m
where h.id = $1
order by m.lane, m.pos
limit $2::int8;

-- name: messages
-- Messages of a lane behind a position, one row for each of their handlers and how far it has come.
-- Index: dead_order, dead_pkey, message_pkey, progress_pkey, task_order, task_pkey. Rows: all handlers, which are few.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body,
    floor(extract(epoch from m.occurred_at) * 1000)::int8 as occurred_ms,
    floor(extract(epoch from m.due_at) * 1000)::int8 as due_ms,
    greatest(floor(extract(epoch from m.due_at - clock_timestamp()) * 1000)::int8 - $4::int8, 0) as due_in_ms,
    greatest(floor(extract(epoch from clock_timestamp() - m.received_at) * 1000)::int8 + $4::int8, 0) as waited_ms,
    floor(extract(epoch from m.received_at) * 1000)::int8 as received_ms,
    m.message_id,
    h.name as handler,
    d.error as dead_error,
    t.failures,
    t.error as task_error,
    m.target is not null or coalesce(m.pos <= progress.pos, false) as is_passed,
    floor(extract(epoch from t.due_at) * 1000)::int8 as task_due_ms,
    case
        when t.owner is not null then 'running'
        when t.scheduled and t.due_at > now.at then 'scheduled'
        when h.ordered is not null and t.order_by is not null
            and "{schema}".is_held(t.handler, t.lane, t.order_by, t.pos, now.at, h.ordered = 'hold') then 'parked'
        else 'turn'
    end as waits
from (
    select * from "{schema}".message m where m.lane = $1 and m.pos > $2 order by m.pos limit $3::int8
) as m
cross join (select clock_timestamp() + $4::int8 * interval '1 ms' as at) as now
left join "{schema}".handler h
    on h.state in ('active', 'paused') and case when m.target is null
        then "{schema}".reads(h.mode, h.kinds, m.kind, m.message_id)
        else m.target = h.id
    end
left join lateral (
    select p.pos from "{schema}".progress p
    where p.handler = h.id and p.lane = m.lane
    order by p.epoch desc, p.pos desc limit 1
) as progress on true
left join "{schema}".task t on (t.handler, t.lane, t.pos) = (h.id, m.lane, m.pos)
left join "{schema}".dead d on (d.handler, d.lane, d.pos) = (h.id, m.lane, m.pos)
order by m.pos, h.name;

-- name: find_message
-- Where a message sits, by its accept marker; no row for one that was pruned.
-- Index: marker_pkey, message_pkey.
select m.lane, m.pos from "{schema}".marker m
where m.handler = '@accept' and m.kind = $1 and m.key = $2
  and exists (select from "{schema}".message g where g.lane = m.lane and g.pos = m.pos);

-- name: tasks
-- Tasks, the next first.
-- Index: dead_order, handler_pkey, message_pkey, task_order. Rows: all tasks, to find the next ones.
select
    h.name as handler, t.lane, t.pos, m.kind, m.key, m.long_key, t.failures,
    floor(extract(epoch from t.due_at) * 1000)::int8 as due_ms, t.error,
    case
        when t.owner is not null then 'running'
        when t.scheduled and t.due_at > now.at then 'scheduled'
        when h.ordered is not null and t.order_by is not null
            and "{schema}".is_held(t.handler, t.lane, t.order_by, t.pos, now.at, h.ordered = 'hold') then 'parked'
        else 'turn'
    end as waits
from "{schema}".task t
join "{schema}".handler h on h.id = t.handler
join "{schema}".message m on m.lane = t.lane and m.pos = t.pos
cross join (select clock_timestamp() + $3::int8 * interval '1 ms' as at) as now
where $1::text is null or h.name = $1
order by t.due_at, t.handler, t.lane, t.pos
limit $2::int8;
