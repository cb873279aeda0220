-- The tasks that a process ran are due now, each with so many crashes more.
update oncebox_task set
    owner = null, fence = null, due_at = cast(unixepoch('subsec') * 1000 as integer) + ?3,
    set_at = cast(unixepoch('subsec') * 1000 as integer) + ?3, crashes = crashes + ?2
where owner = ?1
