-- Live time: when there was a process to handle messages.

-- name: beat
-- Prolongs the latest stretch of live time if it ended no longer ago than ?1 ms.
-- Index: primary key of oncebox_live.
update oncebox_live
set until_ms = max(until_ms, cast(unixepoch('subsec') * 1000 as integer) + ?2)
where from_ms = (select max(from_ms) from oncebox_live)
  and until_ms >= cast(unixepoch('subsec') * 1000 as integer) + ?2 - ?1;

-- name: begin_live_time
-- Begins a stretch of live time now.
-- Index: primary key of oncebox_live.
insert into oncebox_live (from_ms, until_ms)
select now.ms, now.ms from (select cast(unixepoch('subsec') * 1000 as integer) + ?1 as ms) as now
where true
on conflict do nothing;

-- name: live_time
-- Reads all stretches of live time, and the time now; one row with nulls where there are none.
-- Rows: all, one for each period.
select l.from_ms, l.until_ms, now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ?1 as ms) as now
left join oncebox_live l;

-- name: forget_live_time
-- Forgets stretches of live time that ended before ?1.
-- Rows: all, one for each period.
delete from oncebox_live where until_ms < ?1;
