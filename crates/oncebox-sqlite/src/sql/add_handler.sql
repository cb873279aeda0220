-- Adds a handler.
insert into oncebox_handler (name, kinds, mode, state, registered_at)
values (?1, ?2, ?3, 'active', cast(unixepoch('subsec') * 1000 as integer) + ?4)
returning id
