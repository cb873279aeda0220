-- Where there is work for these handlers, and when the next task is due. Three index probes for each handler and lane. Of
-- ordered handlers, only whether there are tasks at all: which of them can run is another question.
select
    l.handler, l.lane,
    coalesce(head.pos > progress.pos, false) as messages,
    coalesce(h.ordered is null and task.due_at <= now.at, false) as tasks,
    case when h.ordered is null then greatest(floor(extract(epoch from task.due_at - now.at) * 1000)::int8, 0) end as due_in_ms,
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
where l.handler = any ($1) and (head.pos > progress.pos or task.due_at is not null)
