-- Pauses a handler, or lets it go on.
update oncebox_handler set state = ?2 where id = ?1
