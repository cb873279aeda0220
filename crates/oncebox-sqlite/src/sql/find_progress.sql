-- How far a handler has come in a lane, the lane's newest position, whether it is ordered, and between which positions
-- it runs again; no row if the handler is gone or paused, or takes other kinds than ?3 by now: a straggler must not
-- pass over what it does not take.
select
    p.epoch, p.pos,
    coalesce((select m.pos from oncebox_message m where m.lane = ?2 order by m.pos desc limit 1), 0),
    h.ordered, r.after, r.until
from oncebox_handler h
cross join oncebox_progress p on p.handler = h.id and p.lane = ?2
left join oncebox_replay r on r.handler = p.handler and r.lane = p.lane and r.epoch = p.epoch
where h.id = ?1 and h.state = 'active' and h.kinds = ?3 and h.mode = ?4 and h.ordered is ?5
order by p.epoch desc, p.pos desc
limit 1
