-- Rolls back and makes the session writable again, all in one message, so that no pooler can come between. The driver
-- believes that it is still in a transaction, and is given one.
rollback;
reset default_transaction_read_only;
begin
