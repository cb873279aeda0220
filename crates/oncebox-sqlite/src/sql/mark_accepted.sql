-- Marks a key as accepted elsewhere: it has no place in the log. Several in one message mark several; so the
-- parameters have no numbers. In order: kind, key, long key, offset of the clock.
insert into oncebox_marker (handler, kind, key, long_key, state, received_at, processed_at)
select '@accept', ?, ?, ?, 'accepted', now.ms, now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ? as ms) as now
where true
on conflict do nothing
