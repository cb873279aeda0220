-- Chooses the dead letters of an action, by the conditions of dead_letters.sql, after a handler (?10), lane and position: a JSON array
-- of [handler, lane, position, done]. One that is to run again (?9) is done if its handler has a marker that
-- says so.
select json_group_array(json_array(c.handler, c.lane, c.pos, c.is_done))
from (
    select d.handler, d.lane, d.pos, ?9 and exists (
        select 1 from oncebox_marker k
        where k.handler = h.origin and k.kind = m.kind and k.key = m.key and k.state = 'done'
    ) as is_done
    from oncebox_dead d
    cross join oncebox_handler h on h.id = d.handler
    cross join oncebox_message m on m.lane = d.lane and m.pos = d.pos
    where (?1 is null or h.name = ?1)
      and (?2 is null or m.kind = ?2)
      and (?3 is null or d.lane = ?3)
      and (?4 is null or d.pos = ?4)
      and (?5 is null or instr(lower(d.error), lower(?5)) > 0)
      and (?6 is null or d.died_at >= ?6)
      and (?7 is null or d.died_at < ?7)
      and (?10 is null or (d.handler, d.lane, d.pos) > (?10, ?11, ?12))
    order by d.handler, d.lane, d.pos
    limit ?8
) as c
