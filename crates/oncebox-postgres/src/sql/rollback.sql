-- Rolls back and makes the session writable again, with no locks of its own, all in one message, so that no pooler can come between. The reset has
-- a transaction of its own: in that of the last begin it would be rolled back too. The driver believes that it is still in
-- a transaction, and is given one.
rollback;
begin;
reset default_transaction_read_only;
select pg_advisory_unlock_all();
commit;
begin
