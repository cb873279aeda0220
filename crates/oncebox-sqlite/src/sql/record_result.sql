-- Keeps a handler's result beside its marker.
insert into oncebox_result (handler, kind, key, body) values (?1, ?2, ?3, ?4)
