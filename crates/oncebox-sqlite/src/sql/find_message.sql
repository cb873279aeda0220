-- Where the message of a kind and key sits, by primary keys; no row if it was pruned.
select m.lane, m.pos
from oncebox_marker a
cross join oncebox_message m on m.lane = a.lane and m.pos = a.pos
where a.handler = '@accept' and a.kind = ?1 and a.key = ?2
