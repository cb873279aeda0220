-- Inserts the markers of the chosen dead letters that have a key; those that were not done are now.
insert into oncebox_marker (handler, kind, key, long_key, state, received_at, processed_at)
select
    h.origin, m.kind, m.key, m.long_key, 'done', m.received_at, cast(unixepoch('subsec') * 1000 as integer) + ?2
from json_each(?1) as chosen
cross join oncebox_handler h on h.id = chosen.value ->> 0
cross join oncebox_message m on m.lane = chosen.value ->> 1 and m.pos = chosen.value ->> 2
where m.key is not null
on conflict (handler, kind, key) do update set state = 'done', processed_at = excluded.processed_at
where state = 'spilled'
