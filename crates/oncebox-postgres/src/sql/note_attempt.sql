-- Notes that a message is about to run where a process has died. Those whose notes stayed behind have died of it; while one of them
-- is alive nobody else runs it.
insert into "{schema}".attempting as a (handler, lane, pos, crashes, process) values ($1, $2, $3, 1, $4)
on conflict (handler, lane, pos) do update
set process = excluded.process, crashes = a.crashes + case when a.process = excluded.process then 0 else 1 end
where a.process = excluded.process or not exists (select from "{schema}".process p where p.id = a.process)
returning crashes
