-- As commit_and_begin does, with a handler's progress behind the proof.
select "{schema}".guard('{transaction_id}', false, decode('{session}', 'hex'));
insert into "{schema}".progress (handler, lane, epoch, pos) values ({progress});
commit;
begin isolation level read committed read write
