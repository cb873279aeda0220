-- Tasks that were set apart in the future, by a clock that was ahead, wait as long as they were to wait, from now on; not those that
-- have a time of their own. The clock may be a second off. ?1 is its offset.
update oncebox_task set due_at = now.ms + (due_at - set_at), set_at = now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ?1 as ms) as now
where owner is null and scheduled = 0 and set_at > now.ms + 1000
