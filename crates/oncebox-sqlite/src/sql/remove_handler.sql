-- Removes a handler that is at work; its name stays taken.
update oncebox_handler set state = 'removed' where name = ?1 and state = 'active' returning id
