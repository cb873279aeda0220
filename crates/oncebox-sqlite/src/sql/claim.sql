-- Claims one unit: a row means fresh. The primary key is the referee. Several in one message claim several units; so the
-- parameters have no numbers. In order: handler, kind, key, long key, fingerprint, waited, offset of the clock.
insert into oncebox_marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
select ?, ?, ?, ?, ?, 'done', now.ms - ?, now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ? as ms) as now
where true
on conflict do nothing
