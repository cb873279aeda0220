-- Makes the chosen dead letters tasks again that are due now, except those that are done. A corrected body
-- (?2) takes the place of the one before.
insert into oncebox_task (handler, lane, pos, order_by, failures, due_at, set_at, error, attempts, body)
select
    d.handler, d.lane, d.pos, d.order_by, 0, now.ms, now.ms, d.error, d.attempts, coalesce(?2, d.body)
from json_each(?1) as chosen
cross join (select cast(unixepoch('subsec') * 1000 as integer) + ?3 as ms) as now
cross join oncebox_dead d
    on d.handler = chosen.value ->> 0 and d.lane = chosen.value ->> 1 and d.pos = chosen.value ->> 2
where not chosen.value ->> 3
on conflict (handler, lane, pos) do update set
    failures = excluded.failures, due_at = excluded.due_at, set_at = excluded.set_at, owner = null, fence = null,
    error = excluded.error, attempts = excluded.attempts, body = excluded.body, scheduled = 0, crashes = 0
