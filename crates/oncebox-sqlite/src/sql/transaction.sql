-- Savepoints, one for each unit of a batch.

-- name: isolate
-- Sets the savepoint that a failed handler is rolled back to.
-- Rows: none.
savepoint oncebox_unit;

-- name: keep
-- Keeps what a handler wrote.
-- Rows: none.
release savepoint oncebox_unit;

-- name: undo
-- Undoes what a handler wrote.
-- Rows: none.
rollback to savepoint oncebox_unit;
release savepoint oncebox_unit;
