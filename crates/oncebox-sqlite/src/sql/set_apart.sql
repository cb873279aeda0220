-- Sets a message apart for one handler. Several in one message set several apart; so the parameters have no
-- numbers. In order: offset of the clock, handler, lane, position, ordering key, failures, due in ms, error,
-- tries before, body, scheduled, crashes, owner, fence.
with one as materialized (
    select
        cast(unixepoch('subsec') * 1000 as integer) + ? as now, ? as handler, ? as lane, ? as pos,
        ? as order_by, ? as failures, ? as due_in, ? as error, coalesce(?, '[]') as attempts, ? as body,
        ? as scheduled, ? as crashes, ? as owner, ? as fence
)
insert into oncebox_task (
    handler, lane, pos, order_by, failures, due_at, set_at, error, attempts, body, scheduled, crashes, owner, fence
)
select
    handler, lane, pos, order_by, failures, now + due_in, now, coalesce(error, attempts ->> '$[#-1].error'),
    case when error is null then attempts
        -- The first five and the last fifteen are kept, and how many are not.
        else json_insert(
            iif(
                json_array_length(attempts) >= 20,
                json_set(json_remove(attempts, '$[5]'), '$[5].omitted', 1 + coalesce(attempts ->> '$[5].omitted', 0)),
                attempts
            ),
            '$[#]', json_object('attempt', failures, 'at', now, 'error', error)
        )
    end,
    body, scheduled, crashes, owner, fence
from one where true
on conflict (handler, lane, pos) do update set
    order_by = excluded.order_by, failures = excluded.failures, due_at = excluded.due_at, set_at = excluded.set_at,
    error = excluded.error, attempts = excluded.attempts, body = excluded.body, scheduled = excluded.scheduled,
    crashes = excluded.crashes, owner = excluded.owner, fence = excluded.fence
