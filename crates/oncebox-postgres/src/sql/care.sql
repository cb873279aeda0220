-- Care: messages one by one where processes have crashed, each with a note.

-- name: note_crash
-- Notes the crash of a process ($1): its tasks are due now, each with one crash more, and the lanes that it has leased are free. Where
-- something waits for its handlers, the crash is noted with the progress and the first task that is due. Where one of these has not
-- moved since the crash before, one message may be to blame for both: care is needed, for as many as the process can have had in
-- flight ($4). How many tasks.
-- Index: careful_pkey, lane_pkey, message_pkey, progress_pkey, task_due, task_owner.
with freed as (
    update "{schema}".task t
    set owner = null, fence = null, crashes = t.crashes + 1,
        due_at = least(t.due_at, clock_timestamp() + $2::int8 * interval '1 ms')
    where t.owner = $1
    returning 1
), lanes as (
    update "{schema}".lane set process = null where process = $1
), waiting as (
    select
        l.handler, l.lane, case when newest.pos > progress.pos then progress.pos end as pos, due.first as task_pos,
        least($4::int4, greatest(coalesce(newest.pos - progress.pos, 0), 0) + due.tasks) as messages
    from "{schema}".lane l
    left join lateral (
        select m.pos from "{schema}".message m where m.lane = l.lane order by m.pos desc limit 1
    ) as newest on true
    left join lateral (
        select p.pos from "{schema}".progress p
        where p.handler = l.handler and p.lane = l.lane
        order by p.epoch desc, p.pos desc limit 1
    ) as progress on true
    cross join lateral (
        select count(*) as tasks, (array_agg(t.pos))[1] as first from (
            select t.pos from "{schema}".task t
            where t.handler = l.handler and t.lane = l.lane and t.owner is null
              and t.due_at <= clock_timestamp() + $2::int8 * interval '1 ms'
            order by t.due_at, t.pos
            limit 10000
        ) as t
    ) as due
    where l.handler = any ($3) and (newest.pos > progress.pos or due.tasks > 0)
), noted as (
    insert into "{schema}".careful as c (handler, lane, messages_left, pos, task_pos)
    select
        w.handler, w.lane,
        case when w.pos = before.pos or w.task_pos = before.task_pos then w.messages else 0 end,
        w.pos, w.task_pos
    from waiting w
    left join "{schema}".careful before on before.handler = w.handler and before.lane = w.lane
    order by w.handler, w.lane
    on conflict (handler, lane) do update set
        messages_left = greatest(c.messages_left, excluded.messages_left),
        pos = excluded.pos, task_pos = excluded.task_pos
)
select count(*) from freed;

-- name: note_attempt
-- Notes that a message is about to run where a process has crashed. A note that stayed behind counts as a crash by this message; while
-- the process of a note is alive no other process runs the message.
-- Index: process_pkey.
insert into "{schema}".attempting as a (handler, lane, pos, crashes, process) values ($1, $2, $3, 1, $4)
on conflict (handler, lane, pos) do update
set process = excluded.process, crashes = a.crashes + case when a.process = excluded.process then 0 else 1 end
where a.process = excluded.process or not exists (select from "{schema}".process p where p.id = a.process)
returning crashes;

-- name: give_back_attempt
-- A message did not run after all. Earlier crashes by it are still counted, by a note without a process.
-- Index: attempting_pkey.
with first as (
    delete from "{schema}".attempting where handler = $1 and lane = $2 and pos = $3 and process = $4 and crashes = 1
)
update "{schema}".attempting set crashes = crashes - 1, process = '00000000-0000-0000-0000-000000000000'
where handler = $1 and lane = $2 and pos = $3 and process = $4 and crashes > 1;

-- name: forget_attempt
-- A message did not kill its process: one less to be careful with.
-- Index: attempting_pkey, careful_pkey.
with noted as (
    delete from "{schema}".attempting where handler = $1 and lane = $2 and pos = $3
), less as (
    update "{schema}".careful set messages_left = messages_left - 1
    where handler = $1 and lane = $2 and messages_left > 1
)
delete from "{schema}".careful where handler = $1 and lane = $2 and messages_left <= 1;

-- name: end_care
-- No more care is needed in a lane.
-- Index: careful_pkey.
delete from "{schema}".careful where handler = $1 and lane = $2;
