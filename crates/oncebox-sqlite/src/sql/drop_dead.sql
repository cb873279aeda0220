-- Drops all dead letters of a handler.
delete from oncebox_dead where handler = ?1
