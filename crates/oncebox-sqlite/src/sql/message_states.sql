-- What became of the messages of a lane behind a position and up to another, for each handler of their kind,
-- by name.
select
    m.pos, h.name, d.error, t.failures, t.due_at, t.error,
    coalesce(m.pos <= (
        select p.pos from oncebox_progress p
        where p.handler = h.id and p.lane = m.lane
        order by p.epoch desc, p.pos desc limit 1
    ), 0)
from oncebox_message m
cross join oncebox_handler h
left join oncebox_dead d on d.handler = h.id and d.lane = m.lane and d.pos = m.pos
left join oncebox_task t on t.handler = h.id and t.lane = m.lane and t.pos = m.pos
where m.lane = ?1 and m.pos > ?2 and m.pos <= ?3
  and h.state <> 'removed' and h.mode <> 'inline' and (m.target is null or m.target = h.id)
  and exists (select 1 from json_each(h.kinds) k where k.value = m.kind)
order by m.pos, h.name
