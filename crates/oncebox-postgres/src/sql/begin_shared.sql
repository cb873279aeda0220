-- Begins a transaction and leaves the session alone, for connections that others use between two transactions.
begin isolation level read committed read write
