-- Claims one unit: a row means fresh. The primary key is the referee.
insert into oncebox_marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
select ?1, ?2, ?3, ?4, ?5, 'done', now.ms - ?6, now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ?7 as ms) as now
where true
on conflict do nothing
