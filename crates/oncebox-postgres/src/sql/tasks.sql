-- Messages set apart, the next first.
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
limit $2::int8
