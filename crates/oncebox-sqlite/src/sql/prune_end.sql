-- Where a later step of pruning goes on: behind the ?3 positions of this one, unless it met a message from ?4
-- or later, or the end of the lane.
select max(looked.pos)
from (
    select m.pos, m.received_at from oncebox_message m
    where m.lane = ?1 and m.pos > ?2
    order by m.pos
    limit ?3
) as looked
having count(*) = ?3 and max(looked.received_at) < ?4
