-- Prolongs the latest stretch of live time if it ended no longer ago than ?1 ms.
update oncebox_live
set until_ms = max(until_ms, cast(unixepoch('subsec') * 1000 as integer) + ?2)
where from_ms = (select max(from_ms) from oncebox_live)
  and until_ms >= cast(unixepoch('subsec') * 1000 as integer) + ?2 - ?1
