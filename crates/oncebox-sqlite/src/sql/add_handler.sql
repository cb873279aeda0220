-- Adds a handler, under its first name.
insert into oncebox_handler (name, origin, kinds, mode, ordered, state, registered_at)
values (?1, ?1, ?2, ?3, ?4, 'active', cast(unixepoch('subsec') * 1000 as integer) + ?5)
returning id
