-- Proves that this is still the engine's own transaction, whole, and commits it, all in one message: if the proof fails,
-- nothing of the rest is carried out. The driver believes that it is still in a transaction, and is given one.
select "{schema}".guard('{transaction_id}', true, decode('{session}', 'hex'));
commit;
begin
