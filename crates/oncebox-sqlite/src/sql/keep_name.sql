-- Keeps a name taken that a handler had before.
insert into oncebox_handler (name, origin, kinds, mode, state, renamed_to, registered_at)
select ?2, h.origin, h.kinds, h.mode, 'renamed', h.id, cast(unixepoch('subsec') * 1000 as integer) + ?3
from oncebox_handler h
where h.id = ?1
