-- What an append needs to know of its lane: how many lanes there are, the newest position in this one, and
-- the time now.
select
    l.lanes,
    coalesce((select m.pos from oncebox_message m where m.lane = ?1 order by m.pos desc limit 1), 0),
    cast(unixepoch('subsec') * 1000 as integer) + ?2
from oncebox_layout l
