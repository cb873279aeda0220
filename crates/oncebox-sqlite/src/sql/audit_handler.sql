-- Writes down what an operator does with a handler.
insert into oncebox_audit (at, operator, action, handler, detail)
values (cast(unixepoch('subsec') * 1000 as integer) + ?5, ?1, ?2, ?3, ?4)
