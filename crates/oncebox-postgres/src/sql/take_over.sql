-- The tasks of a process that has died ($1) are due now, each with one crash more; and care is needed with its handlers, where
-- something waits. How many tasks.
with freed as (
    update "{schema}".task t
    set owner = null, fence = null, crashes = t.crashes + 1,
        due_at = least(t.due_at, clock_timestamp() + $2::int8 * interval '1 ms')
    where t.owner = $1
    returning 1
), careful as (
    -- What it had in hand is still there: ahead of the progress, or a task that is due.
    insert into "{schema}".careful as c (handler, lane, messages_left)
    select l.handler, l.lane, least($4::int4, waiting.messages)
    from "{schema}".lane l
    cross join lateral (
        select greatest(coalesce((
            select m.pos from "{schema}".message m where m.lane = l.lane order by m.pos desc limit 1
        ) - (
            select p.pos from "{schema}".progress p
            where p.handler = l.handler and p.lane = l.lane
            order by p.epoch desc, p.pos desc limit 1
        ), 0), 0) + (
            select count(*) from (
                select from "{schema}".task t
                where t.handler = l.handler and t.lane = l.lane and t.owner is null
                  and t.due_at <= clock_timestamp() + $2::int8 * interval '1 ms'
                limit 10000
            ) as due
        ) as messages
    ) as waiting
    where l.handler = any ($3) and waiting.messages > 0
    order by l.handler, l.lane
    on conflict (handler, lane) do update set messages_left = greatest(c.messages_left, excluded.messages_left)
)
select count(*) from freed
