-- Notes kinds, a JSON array, of which messages were accepted at ?2.
insert into oncebox_kind (kind, first_seen_at)
select value, ?2 from json_each(?1) where true
on conflict do nothing
