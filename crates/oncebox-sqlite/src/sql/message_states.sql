-- What became of the messages of a lane behind a position and up to another, for each handler of their kind,
-- by name; or for the one that a message is for alone, which is done when it is no longer set apart.
select
    m.pos, h.name, d.error, t.failures, t.due_at, t.error,
    m.target is not null or coalesce(m.pos <= (
        select p.pos from oncebox_progress p
        where p.handler = h.id and p.lane = m.lane
        order by p.epoch desc, p.pos desc limit 1
    ), 0),
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
from oncebox_message m
cross join oncebox_handler h
left join oncebox_dead d on d.handler = h.id and d.lane = m.lane and d.pos = m.pos
left join oncebox_task t on t.handler = h.id and t.lane = m.lane and t.pos = m.pos
where m.lane = ?1 and m.pos > ?2 and m.pos <= ?3
  and h.state in ('active', 'paused') and (
    m.target = h.id
    or m.target is null and h.mode in ('stored', 'mixed')
    and exists (select 1 from json_each(h.kinds) k where k.value = m.kind)
  )
order by m.pos, h.name
