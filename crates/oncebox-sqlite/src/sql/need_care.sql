-- Care is needed with these handlers, a JSON array, in every lane where something waits, ahead of the progress or as a task that
-- is due: for as many of these as ?2, which a process can have had in hand.
with recursive lane(n) as (
    select 0 from oncebox_layout
    union all
    select n + 1 from lane where n + 1 < (select lanes from oncebox_layout)
), waiting as (
    select h.id as handler, lane.n as lane, max(coalesce((
        select m.pos from oncebox_message m where m.lane = lane.n order by m.pos desc limit 1
    ) - (
        select p.pos from oncebox_progress p
        where p.handler = h.id and p.lane = lane.n
        order by p.epoch desc, p.pos desc limit 1
    ), 0), 0) + (
        select count(*) from oncebox_task t
        where t.handler = h.id and t.lane = lane.n and t.owner is null
          and t.due_at <= cast(unixepoch('subsec') * 1000 as integer) + ?3
    ) as messages
    from json_each(?1) as had
    cross join oncebox_handler h on h.id = had.value and h.state in ('active', 'paused')
    cross join lane
)
insert into oncebox_careful (handler, lane, messages_left)
select w.handler, w.lane, min(w.messages, ?2)
from waiting w
where w.messages > 0
on conflict (handler, lane) do update set messages_left = max(messages_left, excluded.messages_left)
