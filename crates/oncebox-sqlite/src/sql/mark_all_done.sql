-- Counts everything as done that a handler, by its first name, has set apart.
update oncebox_marker set state = 'done', processed_at = cast(unixepoch('subsec') * 1000 as integer) + ?2
where handler = ?1 and state = 'spilled'
