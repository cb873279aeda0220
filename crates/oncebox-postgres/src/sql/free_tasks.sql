-- What a process had in hand is free.
update "{schema}".task
set owner = null, fence = null, due_at = least(due_at, clock_timestamp() + $2::int8 * interval '1 ms')
where owner = $1
