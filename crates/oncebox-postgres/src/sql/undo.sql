-- Takes back what a handler wrote.
rollback to savepoint oncebox_unit;
release savepoint oncebox_unit
