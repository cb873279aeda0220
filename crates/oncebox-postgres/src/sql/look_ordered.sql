-- When the next task can run in lanes of ordered handlers: the head of an ordering key that no dead letter holds back, one without
-- such a key, or one that waits for its sender's time.
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
) as next
