-- Keeps what a handler wrote. Constraints that wait for the commit are checked now, while it is known whose they are; the
-- engine's own is not meant. Going back to the inner savepoint leaves all of them as they were.
savepoint oncebox_check;
select set_config('oncebox.proved', 'yes', true);
set constraints all immediate;
rollback to savepoint oncebox_check;
release savepoint oncebox_check;
release savepoint oncebox_unit
