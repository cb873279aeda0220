-- Prolongs the latest stretch of live time if it ended no longer ago than $1 ms.
update "{schema}".live
set until_at = greatest(until_at, clock_timestamp() + $2::int8 * interval '1 ms')
where from_at = (select max(from_at) from "{schema}".live)
  and until_at >= clock_timestamp() + ($2::int8 - $1::int8) * interval '1 ms'
