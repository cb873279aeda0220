-- Work: finding it, and taking it.

-- name: look
-- Where there is work for these handlers, and when the next task is due. Three index probes for each handler and lane. Of
-- ordered handlers, only whether there are tasks at all: which of them can run is another question.
-- Index: careful_pkey, handler_pkey, lane_pkey, message_pkey, progress_pkey, task_due.
select
    l.handler, l.lane,
    coalesce(head.pos > progress.pos, false) and l.process is null as messages,
    coalesce(h.ordered is null and task.due_at <= now.at, false) as tasks,
    case when h.ordered is null and task.due_at is not null
        then greatest(floor(extract(epoch from task.due_at - now.at) * 1000)::int8, 0)
    end as due_in_ms,
    h.ordered is not null and task.due_at is not null as has_ordered,
    exists (
        select from "{schema}".careful c where c.handler = l.handler and c.lane = l.lane and c.messages_left > 0
    ) as careful
from "{schema}".lane l
join "{schema}".handler h on h.id = l.handler and h.state = 'active'
cross join (select clock_timestamp() + $2::int8 * interval '1 ms' as at) as now
left join lateral (
    select m.pos from "{schema}".message m where m.lane = l.lane order by m.pos desc limit 1
) as head on true
left join lateral (
    select p.pos from "{schema}".progress p
    where p.handler = l.handler and p.lane = l.lane
    order by p.epoch desc, p.pos desc limit 1
) as progress on true
left join lateral (
    select t.due_at from "{schema}".task t
    where t.handler = l.handler and t.lane = l.lane and t.owner is null
    order by t.due_at limit 1
) as task on true
where l.handler = any ($1) and ((head.pos > progress.pos and l.process is null) or task.due_at is not null);

-- name: look_ordered
-- When the next task can run in lanes of ordered handlers: the head of an ordering key that no dead letter holds back, one without
-- such a key, or one that waits for its sender's time.
-- Index: dead_order, handler_pkey, task_due, task_order.
select
    l.handler, l.lane, coalesce(next.due_at <= now.at, false) as tasks,
    greatest(floor(extract(epoch from next.due_at - now.at) * 1000)::int8, 0) as due_in_ms
from unnest($1::int4[], $2::int4[]) as l(handler, lane)
join "{schema}".handler h on h.id = l.handler
cross join (select clock_timestamp() + $3::int8 * interval '1 ms' as at) as now
cross join lateral (
    select min(one.due_at) as due_at from (
        select k.due_at from "{schema}".task_heads(l.handler, l.lane, now.at) k
        where k.owner is null
          and not "{schema}".is_held(l.handler, l.lane, k.order_by, k.pos, now.at, h.ordered = 'hold')
        union all
        select t.due_at from "{schema}".task t
        where t.handler = l.handler and t.lane = l.lane and t.owner is null
          and (t.order_by is null or (t.scheduled and t.due_at > now.at))
    ) as one
) as next;

-- name: take
-- Takes a lane for a handler, and what is to do there; see the function.
-- Index: handler_pkey, lane_pkey, message_pkey, progress_pkey, replay_pkey, task_order, dead_order.
select * from "{schema}".take($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12);

-- name: take_tasks
-- Takes a lane for a handler, and its tasks that are due; see the function.
-- Index: dead_order, handler_pkey, lane_pkey, marker_pkey, message_pkey, task_due, task_order, task_pkey.
select * from "{schema}".take_tasks($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);
