-- Lets a task that is still under its fence run again: handler, lane, position, fence, failures, due in ms, error, offset of
-- the clock. Without an error nothing is added to its tries.
update oncebox_task set
    failures = ?5, due_at = cast(unixepoch('subsec') * 1000 as integer) + ?8 + ?6,
    set_at = cast(unixepoch('subsec') * 1000 as integer) + ?8, owner = null, fence = null, error = coalesce(?7, error),
    attempts = case when ?7 is null then attempts
        -- The first five and the last fifteen are kept, and how many are not.
        else json_insert(
            iif(
                json_array_length(attempts) >= 20,
                json_set(json_remove(attempts, '$[5]'), '$[5].omitted', 1 + coalesce(attempts ->> '$[5].omitted', 0)),
                attempts
            ),
            '$[#]', json_object('attempt', ?5, 'at', cast(unixepoch('subsec') * 1000 as integer) + ?8, 'error', ?7)
        )
    end
where handler = ?1 and lane = ?2 and pos = ?3 and fence = ?4
