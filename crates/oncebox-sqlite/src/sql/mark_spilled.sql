-- Marks a unit as known and not done, unless it is known already: handler, kind, key, long key, fingerprint, waited, offset
-- of the clock.
insert into oncebox_marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
select ?1, ?2, ?3, ?4, ?5, 'spilled', now.ms - ?6, now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ?7 as ms) as now
where true
on conflict do nothing
