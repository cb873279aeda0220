-- Notes the death of a process with these handlers, a JSON array, in every lane where something waits for them, ahead of the progress
-- or as a task that is due: with the progress and the first of these tasks. Where one of the two has not moved since the death before,
-- one message may be to blame for both: care is needed, for as many as ?2, which a process can have had in hand.
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
    messages_left = max(messages_left, excluded.messages_left), pos = excluded.pos, task_pos = excluded.task_pos
