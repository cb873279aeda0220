-- Accept markers for messages that were accepted elsewhere, sorted as every claim.
insert into "{schema}".marker (handler, kind, key, long_key, state, received_at, processed_at)
select '@accept', $1, k.key, k.long_key, 'accepted', now.at, now.at
from unnest($2::bytea[], $3::bytea[]) as k(key, long_key)
cross join (select clock_timestamp() + $4::int8 * interval '1 ms' as at) as now
order by k.key
on conflict do nothing
