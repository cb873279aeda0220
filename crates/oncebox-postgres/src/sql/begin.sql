-- Begins a transaction in a session that is read-only outside of it: a handler that runs ROLLBACK cannot write on with
-- no transaction around it. The guard makes the session as it was before, by committing that along with the rest.
begin;
set session default_transaction_read_only = on;
commit;
begin isolation level read committed read write
