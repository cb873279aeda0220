-- Sets a marker to a state, now. Several in one message set several; so the parameters have no numbers. In order: state,
-- offset of the clock, handler, kind, key.
update oncebox_marker set state = ?, processed_at = cast(unixepoch('subsec') * 1000 as integer) + ?
where handler = ? and kind = ? and key = ?
