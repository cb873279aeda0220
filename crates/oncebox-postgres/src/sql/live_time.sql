-- Live time: when there was a process to handle messages.

-- name: beat
-- Prolongs the latest stretch of live time if it ended no longer ago than $1 ms, else begins one; in one statement, so
-- that no time is lost between the two.
-- Index: live_pkey.
with now as materialized (
    select clock_timestamp() + $2::int8 * interval '1 ms' as at
), prolonged as (
    update "{schema}".live l
    set until_at = greatest(l.until_at, now.at)
    from now
    where l.from_at = (select max(from_at) from "{schema}".live) and l.until_at >= now.at - $1::int8 * interval '1 ms'
    returning l.from_at
)
insert into "{schema}".live (from_at, until_at)
select at, at from now where not exists (select from prolonged)
on conflict do nothing;

-- name: live_time
-- Reads all stretches of live time, and the time now; one row with nulls where there are none.
-- Rows: all, one for each period.
select
    floor(extract(epoch from l.from_at) * 1000)::int8 as from_ms,
    floor(extract(epoch from l.until_at) * 1000)::int8 as until_ms,
    floor(extract(epoch from clock_timestamp()) * 1000)::int8 + $1::int8 as now_ms
from (select) as now
left join "{schema}".live l on true;

-- name: forget_live_time
-- Forgets stretches of live time that ended before $1.
-- Rows: all, one for each period.
delete from "{schema}".live where until_at < to_timestamp($1::int8 / 1000.0);
