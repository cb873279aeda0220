-- Dead letters, the oldest first. A condition that is null does not count: handler, kind, lane, position,
-- text of the error, died at or after, died before.
select
    h.name, d.lane, d.pos, m.kind, m.key, m.long_key, coalesce(d.body, m.body),
    m.received_at, d.died_at, d.error, d.attempts
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
order by d.died_at, d.handler, d.lane, d.pos
limit ?8
