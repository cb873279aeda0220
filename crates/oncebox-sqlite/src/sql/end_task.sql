-- Removes a task that is still under its fence: handler, lane, position, fence.
delete from oncebox_task where handler = ?1 and lane = ?2 and pos = ?3 and fence = ?4
