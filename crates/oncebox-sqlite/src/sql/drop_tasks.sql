-- Drops all tasks of a handler.
delete from oncebox_task where handler = ?1
