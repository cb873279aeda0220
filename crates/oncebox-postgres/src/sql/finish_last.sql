-- As commit does, with a handler's progress behind the proof.
select "{schema}".guard('{transaction_id}', true, decode('{session}', 'hex'));
insert into "{schema}".progress (handler, lane, epoch, pos) values ({progress});
commit;
begin
