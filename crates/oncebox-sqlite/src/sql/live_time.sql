-- Reads all stretches of live time, and the time now; one row with nulls where there are none.
select l.from_ms, l.until_ms, now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ?1 as ms) as now
left join oncebox_live l
