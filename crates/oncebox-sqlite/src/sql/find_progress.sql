-- How far a handler has come in a lane, and the lane's newest position; no row if the handler is gone, or takes other
-- kinds than ?3 by now: a straggler must not pass over what it does not take.
select
    p.epoch, p.pos,
    coalesce((select m.pos from oncebox_message m where m.lane = ?2 order by m.pos desc limit 1), 0)
from oncebox_progress p
where p.handler = ?1 and p.lane = ?2
  and exists (select 1 from oncebox_handler h where h.id = ?1 and h.state = 'active' and h.kinds = ?3)
order by p.epoch desc, p.pos desc
limit 1
