-- Gives a handler another name.
update oncebox_handler set name = ?2 where id = ?1
