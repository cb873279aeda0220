-- Begins a stretch of live time now.
insert into oncebox_live (from_ms, until_ms)
select now.ms, now.ms from (select cast(unixepoch('subsec') * 1000 as integer) + ?1 as ms) as now
where true
on conflict do nothing
