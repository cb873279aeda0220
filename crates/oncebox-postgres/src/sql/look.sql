-- Where there is work for these handlers, and when the next task is due. Two index probes for each handler and lane.
select
    l.handler, l.lane,
    coalesce(head.pos > progress.pos, false) as messages,
    coalesce(task.due_at <= now.at, false) as tasks,
    greatest(floor(extract(epoch from task.due_at - now.at) * 1000)::int8, 0) as due_in_ms
from "{schema}".lane l
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
where l.handler = any ($1) and (head.pos > progress.pos or task.due_at is not null)
