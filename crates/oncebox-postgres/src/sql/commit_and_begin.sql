-- As commit does, and what the driver is given is the next transaction of the engine.
select "{schema}".guard('{transaction_id}', false, decode('{session}', 'hex'));
commit;
begin isolation level read committed read write
