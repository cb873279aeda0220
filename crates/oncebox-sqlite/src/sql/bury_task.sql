-- Makes a task that is still under its fence a dead letter: handler, lane, position, fence, failures, error, offset of the
-- clock. The task is still to be removed.
insert into oncebox_dead (handler, lane, pos, order_by, error, attempts, body, died_at)
select
    t.handler, t.lane, t.pos, t.order_by, ?6,
    -- The first five and the last fifteen are kept, and how many are not.
    json_insert(
        iif(
            json_array_length(t.attempts) >= 20,
            json_set(json_remove(t.attempts, '$[5]'), '$[5].omitted', 1 + coalesce(t.attempts ->> '$[5].omitted', 0)),
            t.attempts
        ),
        '$[#]', json_object('attempt', ?5, 'at', now.ms, 'error', ?6)
    ),
    t.body, now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ?7 as ms) as now
cross join oncebox_task t
where t.handler = ?1 and t.lane = ?2 and t.pos = ?3 and t.fence = ?4
on conflict (handler, lane, pos) do update set
    order_by = excluded.order_by, error = excluded.error, attempts = excluded.attempts, body = excluded.body,
    died_at = excluded.died_at
