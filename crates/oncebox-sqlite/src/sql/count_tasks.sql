-- How many tasks a handler has in a lane that have failed or run; no more than ?3 are counted.
select count(*) from (select 1 from oncebox_task t where t.handler = ?1 and t.lane = ?2 and (t.failures > 0 or t.owner is not null) limit ?3)
