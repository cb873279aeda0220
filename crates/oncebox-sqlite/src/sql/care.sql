-- Care: messages one by one where processes have crashed, each with a note.

-- name: note_crash
-- Notes the crash of a process with these handlers, a JSON array, in every lane where something waits for them, ahead of the progress
-- or as a task that is due: with the progress and the first of these tasks. Where one of the two has not moved since the crash before,
-- one message may be to blame for both: care is needed, for as many as ?2, which a process can have had in flight.
-- Index: primary keys of oncebox_careful, oncebox_handler, oncebox_message, oncebox_progress; oncebox_task_due.
with recursive lane(n) as (
    select 0 from oncebox_layout
    union all
    select n + 1 from lane where n + 1 < (select lanes from oncebox_layout)
), seen as (
    select
        h.id as handler, lane.n as lane,
        (select m.pos from oncebox_message m where m.lane = lane.n order by m.pos desc limit 1) as newest,
        (
            select p.pos from oncebox_progress p
            where p.handler = h.id and p.lane = lane.n
            order by p.epoch desc, p.pos desc limit 1
        ) as pos,
        (
            select count(*) from oncebox_task t
            where t.handler = h.id and t.lane = lane.n and t.owner is null
              and t.due_at <= cast(unixepoch('subsec') * 1000 as integer) + ?3
        ) as tasks,
        (
            select t.pos from oncebox_task t
            where t.handler = h.id and t.lane = lane.n and t.owner is null
              and t.due_at <= cast(unixepoch('subsec') * 1000 as integer) + ?3
            order by t.due_at, t.pos limit 1
        ) as task_pos
    from json_each(?1) as had
    cross join oncebox_handler h on h.id = had.value and h.state in ('active', 'paused')
    cross join lane
), waiting as (
    select
        s.handler, s.lane, s.task_pos, case when s.newest > s.pos then s.pos end as pos,
        min(max(coalesce(s.newest - s.pos, 0), 0) + s.tasks, ?2) as messages
    from seen s
)
insert into oncebox_careful (handler, lane, messages_left, pos, task_pos)
select
    w.handler, w.lane,
    case when w.pos = before.pos or w.task_pos = before.task_pos then w.messages else 0 end,
    w.pos, w.task_pos
from waiting w
left join oncebox_careful before on before.handler = w.handler and before.lane = w.lane
where w.messages > 0
on conflict (handler, lane) do update set
    messages_left = max(messages_left, excluded.messages_left), pos = excluded.pos, task_pos = excluded.task_pos;

-- name: note_attempt
-- Notes that process ?4 is about to run a message. How many deaths are put down to it; no row if another process that is not
-- gone has noted it.
-- Index: primary key of oncebox_process.
insert into oncebox_attempting (handler, lane, pos, crashes, process)
values (?1, ?2, ?3, 1, ?4)
on conflict (handler, lane, pos) do update set
    crashes = crashes + (process <> excluded.process), process = excluded.process
where process = excluded.process
   or not exists (select 1 from oncebox_process p where p.id = oncebox_attempting.process)
returning crashes;

-- name: give_back_attempt
-- A message that process ?4 has noted did not run after all. Earlier crashes by it are still counted, by a note without a process.
-- Index: primary key of oncebox_attempting.
update oncebox_attempting set crashes = crashes - 1, process = zeroblob(16)
where handler = ?1 and lane = ?2 and pos = ?3 and process = ?4;

-- name: drop_empty_attempt
-- Removes a note without crashes.
-- Index: primary key of oncebox_attempting.
delete from oncebox_attempting where handler = ?1 and lane = ?2 and pos = ?3 and crashes = 0;

-- name: forget_attempt
-- Takes back the note that a message is about to run.
-- Index: primary key of oncebox_attempting.
delete from oncebox_attempting where handler = ?1 and lane = ?2 and pos = ?3;

-- name: forget_attempts
-- Takes back all notes of a process.
-- Rows: all, one for each message that runs with a note.
delete from oncebox_attempting where process = ?1;

-- name: drop_attempts
-- Forgets a handler's messages that were about to run.
-- Index: primary key of oncebox_attempting.
delete from oncebox_attempting where handler = ?1;

-- name: count_care
-- One message less to be careful with in a lane.
-- Index: primary key of oncebox_careful.
update oncebox_careful set messages_left = messages_left - 1 where handler = ?1 and lane = ?2
returning messages_left;

-- name: end_care
-- No more care is needed in a lane.
-- Index: primary key of oncebox_careful.
delete from oncebox_careful where handler = ?1 and lane = ?2;

-- name: drop_care
-- Ends all care with a handler.
-- Index: primary key of oncebox_careful.
delete from oncebox_careful where handler = ?1;
