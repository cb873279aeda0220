-- Makes a message a dead letter of one handler. Several in one message bury several; so the parameters have
-- no numbers. In order: offset of the clock, handler, lane, position, ordering key, failures, error, tries
-- before, body.
with one as materialized (
    select
        cast(unixepoch('subsec') * 1000 as integer) + ? as now, ? as handler, ? as lane, ? as pos,
        ? as order_by, ? as failures, ? as error, coalesce(?, '[]') as attempts, ? as body
)
insert into oncebox_dead (handler, lane, pos, order_by, error, attempts, body, died_at)
select
    handler, lane, pos, order_by, coalesce(error, ''),
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
    body, now
from one where true
on conflict (handler, lane, pos) do update set
    order_by = excluded.order_by, error = excluded.error, attempts = excluded.attempts, body = excluded.body,
    died_at = excluded.died_at
