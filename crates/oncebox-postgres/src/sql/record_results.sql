-- Keeps handlers' results beside their markers; the newest counts, where a handler ran again on purpose.
insert into "{schema}".result (handler, kind, key, body)
select * from unnest($1::text[], $2::text[], $3::bytea[], $4::bytea[])
on conflict (handler, kind, key) do update set body = excluded.body
