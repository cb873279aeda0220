-- Puts a handler at the start of every lane or, if ?3 says so, behind its newest message.
with recursive lane(n) as (
    select 0 from oncebox_layout
    union all
    select n + 1 from lane where n + 1 < (select lanes from oncebox_layout)
)
insert into oncebox_progress (handler, lane, epoch, pos, at)
select
    ?1, lane.n, ?2,
    case when ?3 then coalesce((
        select m.pos from oncebox_message m where m.lane = lane.n order by m.pos desc limit 1
    ), 0) else 0 end,
    cast(unixepoch('subsec') * 1000 as integer) + ?4
from lane
