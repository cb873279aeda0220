-- Forgets a handler's messages that were about to run.
delete from oncebox_attempting where handler = ?1
