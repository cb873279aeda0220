-- Inserts markers for messages that were handled elsewhere, sorted as every claim.
insert into "{schema}".marker (handler, kind, key, long_key, state, received_at, processed_at)
select $1, $2, k.key, k.long_key, 'done', now.at, now.at
from unnest($3::bytea[], $4::bytea[]) as k(key, long_key)
cross join (select clock_timestamp() + $5::int8 * interval '1 ms' as at) as now
order by k.key
on conflict do nothing
