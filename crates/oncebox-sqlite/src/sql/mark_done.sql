-- Sets the marker of a unit that was known and not done to done, now: handler, kind, key, offset of the clock.
update oncebox_marker set state = 'done', processed_at = cast(unixepoch('subsec') * 1000 as integer) + ?4
where handler = ?1 and kind = ?2 and key = ?3 and state = 'spilled'
