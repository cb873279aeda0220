-- A new fence for process ?1, higher than all before it. No row if the process is not known any more.
update oncebox_fence set newest = newest + 1
where exists (select 1 from oncebox_process p where p.id = ?1)
returning newest
