-- Forgets what a handler is to run on again.
delete from oncebox_replay where handler = ?1
