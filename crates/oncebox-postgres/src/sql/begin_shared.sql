-- Begins a transaction and leaves the session alone, for connections that others use between two transactions. Its statements
-- follow at once: when they do not, whoever sent them is gone, and must not keep its locks. Handlers get their own limit later.
begin isolation level read committed read write;
set local idle_in_transaction_session_timeout = '10s'
