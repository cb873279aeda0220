-- Keeps a handler's result beside its marker; of several, the newest.
insert into oncebox_result (handler, kind, key, body) values (?1, ?2, ?3, ?4)
on conflict (handler, kind, key) do update set body = excluded.body
