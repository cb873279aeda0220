-- How far a handler has come in a lane, and the lane's newest position; no row if the handler is gone.
select
    p.epoch, p.pos,
    coalesce((select m.pos from oncebox_message m where m.lane = ?2 order by m.pos desc limit 1), 0)
from oncebox_progress p
where p.handler = ?1 and p.lane = ?2
order by p.epoch desc, p.pos desc
limit 1
