-- Where there is work for these handlers, a JSON array of numbers: a row for each lane that has some, and
-- one, without a handler, that says in how many ms the next task is due.
with recursive lane(n) as (
    select 0 from oncebox_layout
    union all
    select n + 1 from lane where n + 1 < (select lanes from oncebox_layout)
), head as materialized (
    select lane.n, (
        select m.pos from oncebox_message m where m.lane = lane.n order by m.pos desc limit 1
    ) as pos
    from lane
), now as materialized (
    select cast(unixepoch('subsec') * 1000 as integer) + ?2 as ms
), seen as materialized (
    select
        h.value as handler, head.n as lane,
        coalesce(head.pos > (
            select p.pos from oncebox_progress p
            where p.handler = h.value and p.lane = head.n
            order by p.epoch desc, p.pos desc limit 1
        ), 0) as messages,
        exists (
            select 1 from oncebox_task t
            where t.handler = h.value and t.lane = head.n and t.owner is null and t.due_at <= now.ms
        ) as tasks,
        (
            select t.due_at - now.ms from oncebox_task t
            where t.handler = h.value and t.lane = head.n and t.owner is null and t.due_at > now.ms
            order by t.due_at limit 1
        ) as next_due
    from json_each(?1) h
    cross join head
    cross join now
)
select handler, lane, messages, tasks, null from seen where messages or tasks
union all
select null, null, null, null, min(next_due) from seen
