-- Messages of a lane behind a position, one row for each of their handlers and how far it has come.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body,
    floor(extract(epoch from m.occurred_at) * 1000)::int8 as occurred_ms,
    floor(extract(epoch from m.due_at) * 1000)::int8 as due_ms,
    greatest(floor(extract(epoch from m.due_at - clock_timestamp()) * 1000)::int8 - $4::int8, 0) as due_in_ms,
    greatest(floor(extract(epoch from clock_timestamp() - m.received_at) * 1000)::int8 + $4::int8, 0) as waited_ms,
    floor(extract(epoch from m.received_at) * 1000)::int8 as received_ms,
    h.name as handler,
    case
        when d.pos is not null then 'dead'
        when t.pos is not null then 'task'
        when progress.pos >= m.pos or m.target is not null then 'done'
        else 'waiting'
    end as state,
    coalesce(d.error, t.error) as error,
    t.failures,
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
        then h.mode in ('stored', 'mixed') and m.kind = any (h.kinds)
        else m.target = h.id
    end
left join lateral (
    select p.pos from "{schema}".progress p
    where p.handler = h.id and p.lane = m.lane
    order by p.epoch desc, p.pos desc limit 1
) as progress on true
left join "{schema}".task t on (t.handler, t.lane, t.pos) = (h.id, m.lane, m.pos)
left join "{schema}".dead d on (d.handler, d.lane, d.pos) = (h.id, m.lane, m.pos)
order by m.pos, h.name
