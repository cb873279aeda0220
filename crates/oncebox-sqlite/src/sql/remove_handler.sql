-- Removes a handler; its name stays taken.
update oncebox_handler set state = 'removed' where name = ?1 and state in ('active', 'paused') returning id, origin
