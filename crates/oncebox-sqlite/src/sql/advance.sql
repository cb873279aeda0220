-- Appends how far a handler has come in a lane. The same once more says nothing new.
insert into oncebox_progress (handler, lane, epoch, pos, at)
values (?1, ?2, ?3, ?4, cast(unixepoch('subsec') * 1000 as integer) + ?5)
on conflict do nothing
