-- Begins a stretch of live time now.
insert into "{schema}".live (from_at, until_at)
select now.at, now.at from (select clock_timestamp() + $1::int8 * interval '1 ms' as at) as now
on conflict do nothing
