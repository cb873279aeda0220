-- Ends all care with a handler.
delete from oncebox_careful where handler = ?1
