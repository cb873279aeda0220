-- Tasks: messages that one handler runs later, or outside a transaction.

-- name: write_tasks
-- Writes a task of one handler. Several statements in one message write several; so the parameters have no
-- numbers. In order: offset of the clock, handler, lane, position, ordering key, failures, due in ms, error,
-- attempts before, body, scheduled, crashes, owner, fence.
-- Index: primary key of oncebox_task.
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
        else json_insert(attempts, '$[#]', json_object('attempt', failures, 'at', now, 'error', error))
    end,
    body, scheduled, crashes, owner, fence
from one where true
on conflict (handler, lane, pos) do update set
    order_by = excluded.order_by, failures = excluded.failures, due_at = excluded.due_at, set_at = excluded.set_at,
    error = excluded.error, attempts = excluded.attempts, body = excluded.body, scheduled = excluded.scheduled,
    crashes = excluded.crashes, owner = excluded.owner, fence = excluded.fence;

-- name: next_fence
-- A new fence for process ?1, higher than all before it. No row if the process is not known any more.
-- Index: primary key of oncebox_process.
update oncebox_fence set newest = newest + 1
where exists (select 1 from oncebox_process p where p.id = ?1)
returning newest;

-- name: task_attempts
-- Reads the failed attempts of a task: handler, lane, position.
-- Index: primary key of oncebox_task.
select attempts from oncebox_task where handler = ?1 and lane = ?2 and pos = ?3;

-- name: retry_task
-- Lets a task that is still under its fence run again: handler, lane, position, fence, failures, due in ms, error, offset of
-- the clock, its failed attempts with room for this one. Without an error these stay as they are.
-- Index: primary key of oncebox_task.
update oncebox_task set
    failures = ?5, due_at = cast(unixepoch('subsec') * 1000 as integer) + ?8 + ?6,
    set_at = cast(unixepoch('subsec') * 1000 as integer) + ?8, owner = null, fence = null, error = coalesce(?7, error),
    attempts = case when ?7 is null then attempts
        else json_insert(?9, '$[#]', json_object(
            'attempt', ?5, 'at', cast(unixepoch('subsec') * 1000 as integer) + ?8, 'error', ?7
        ))
    end
where handler = ?1 and lane = ?2 and pos = ?3 and fence = ?4;

-- name: end_task
-- Removes a task that is still under its fence: handler, lane, position, fence.
-- Index: primary key of oncebox_task.
delete from oncebox_task where handler = ?1 and lane = ?2 and pos = ?3 and fence = ?4;

-- name: remove_tasks
-- Takes tasks of a handler and lane out of the table, by their positions, a JSON array.
-- Index: primary key of oncebox_task.
delete from oncebox_task where handler = ?1 and lane = ?2 and pos in (select value from json_each(?3));

-- name: drop_tasks
-- Drops all tasks of a handler.
-- Index: primary key of oncebox_task.
delete from oncebox_task where handler = ?1;

-- name: free_tasks
-- The tasks that a process ran are due now, with ?2 added to the crashes of each.
-- Index: oncebox_task_owner.
update oncebox_task set
    owner = null, fence = null, due_at = cast(unixepoch('subsec') * 1000 as integer) + ?3,
    set_at = cast(unixepoch('subsec') * 1000 as integer) + ?3, crashes = crashes + ?2
where owner = ?1;

-- name: count_tasks
-- How many tasks a handler has in a lane that have failed or run; no more than ?3 are counted.
-- Index: primary key of oncebox_task.
select count(*) from (select 1 from oncebox_task t where t.handler = ?1 and t.lane = ?2 and (t.failures > 0 or t.owner is not null) limit ?3);

-- name: correct_due_times
-- Corrects tasks that a process with a fast clock wrote: each waits for its planned time again, from now on; not tasks that
-- have a time of their own. The clock may be a second off. ?1 is its offset.
-- Index: oncebox_task_set.
update oncebox_task set due_at = now.ms + (due_at - set_at), set_at = now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ?1 as ms) as now
where owner is null and scheduled = 0 and set_at > now.ms + 1000;
