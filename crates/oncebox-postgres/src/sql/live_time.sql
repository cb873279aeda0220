-- Reads all stretches of live time, and the time now; one row with nulls where there are none.
select
    floor(extract(epoch from l.from_at) * 1000)::int8 as from_ms,
    floor(extract(epoch from l.until_at) * 1000)::int8 as until_ms,
    floor(extract(epoch from clock_timestamp()) * 1000)::int8 + $1::int8 as now_ms
from (select) as now
left join "{schema}".live l on true
