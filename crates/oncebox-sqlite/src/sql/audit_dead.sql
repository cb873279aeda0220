-- Writes down what an operator (?2) does (?3) with the chosen dead letters, with the error of each and a note (?5).
insert into oncebox_audit (at, operator, action, handler, lane, pos, detail)
select
    cast(unixepoch('subsec') * 1000 as integer) + ?4, ?2,
    case when chosen.value ->> 3 then 'already_done' else ?3 end,
    h.name, d.lane, d.pos, d.error || coalesce('; ' || ?5, '')
from json_each(?1) as chosen
cross join oncebox_handler h on h.id = chosen.value ->> 0
cross join oncebox_dead d
    on d.handler = chosen.value ->> 0 and d.lane = chosen.value ->> 1 and d.pos = chosen.value ->> 2
order by chosen.key
