-- Notes that process ?4 is about to run a message. How many deaths are put down to it; no row if another process that is not
-- gone has noted it.
insert into oncebox_attempting (handler, lane, pos, crashes, process)
values (?1, ?2, ?3, 1, ?4)
on conflict (handler, lane, pos) do update set
    crashes = crashes + (process <> excluded.process), process = excluded.process
where process = excluded.process
   or not exists (select 1 from oncebox_process p where p.id = oncebox_attempting.process)
returning crashes
