-- Prolongs the latest stretch of live time if it ended no longer ago than $1 ms, else begins one; in one statement, so
-- that no time is lost between the two.
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
on conflict do nothing
