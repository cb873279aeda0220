-- Keeps handlers' results beside their markers.
insert into "{schema}".result (handler, kind, key, body)
select * from unnest($1::text[], $2::text[], $3::bytea[], $4::bytea[])
