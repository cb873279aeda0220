-- Handlers: registration, and what operators do with them.

-- name: find_handlers
-- Handlers by name; of a name that one had before, the name that it has now.
select
    h.id, h.name, coalesce(n.name, h.origin) as origin, h.kinds, h.mode, h.ordered, h.state
from "{schema}".handler h
left join "{schema}".handler n on n.id = h.renamed_to
where h.name = any ($1);

-- name: find_leftovers
-- What a handler still has to do: messages ahead of its progress, tasks or dead letters; keys that came inline, which are those that
-- were never accepted; and messages that were done inline while they wait in the log.
select
    exists (
        select from "{schema}".lane l
        cross join lateral (
            select p.pos from "{schema}".progress p
            where p.handler = h.id and p.lane = l.lane
            order by p.epoch desc, p.pos desc limit 1
        ) as p
        join "{schema}".message m on m.lane = l.lane and m.pos > p.pos and m.target is null and m.kind = any (h.kinds)
        where l.handler = h.id
    ) as waiting,
    exists (select from "{schema}".task t where t.handler = h.id)
        or exists (select from "{schema}".dead d where d.handler = h.id) as set_apart,
    exists (
        select from "{schema}".marker m
        where m.handler = h.origin and not exists (
            select from "{schema}".marker a where a.handler = '@accept' and a.kind = m.kind and a.key = m.key
        )
    ) as inline_keys,
    exists (
        select from "{schema}".marker m
        join "{schema}".marker a on a.handler = '@accept' and a.kind = m.kind and a.key = m.key
        where m.handler = h.origin and m.state = 'done' and (
            a.pos > (
                select p.pos from "{schema}".progress p
                where p.handler = h.id and p.lane = a.lane
                order by p.epoch desc, p.pos desc limit 1
            )
            or exists (select from "{schema}".task t where (t.handler, t.lane, t.pos) = (h.id, a.lane, a.pos))
        )
    ) as done_elsewhere
from "{schema}".handler h
where h.id = $1;

-- name: add_handler
-- A new handler; no row if another process has just inserted that name.
insert into "{schema}".handler (name, origin, kinds, mode, ordered, state) values ($1, $1, $2, $3, $4, 'active')
on conflict do nothing
returning id;

-- name: change_handler
-- What is wanted of a handler now.
update "{schema}".handler set kinds = $2, mode = $3, ordered = $4 where id = $1;

-- name: revive_handler
-- Lets a removed handler begin again.
update "{schema}".handler set state = 'active', kinds = $2, mode = $3, ordered = $4 where id = $1;

-- name: pause_handler
-- Stops a handler or lets it go on, with its entry in the audit.
with changed as (
    update "{schema}".handler set state = case when $2 then 'paused' else 'active' end
    where name = $1 and state = case when $2 then 'active' else 'paused' end
    returning name
)
insert into "{schema}".audit (at, operator, action, handler)
select clock_timestamp() + $4::int8 * interval '1 ms', $3, case when $2 then 'pause' else 'resume' end, c.name
from changed c;

-- name: free_name
-- Frees a name that this very handler had before, and writes the new name down in the audit.
with freed as (
    delete from "{schema}".handler where name = $2 and state = 'renamed' and renamed_to = $1
)
insert into "{schema}".audit (at, operator, action, handler, detail)
values (clock_timestamp() + $4::int8 * interval '1 ms', $3, 'rename', $2, 'was ' || $5);

-- name: rename_handler
-- Gives a handler another name.
update "{schema}".handler set name = $2 where id = $1;

-- name: reserve_name
-- The old name stays taken.
insert into "{schema}".handler (name, origin, kinds, mode, state, renamed_to) values ($2, $2, '{}', 'inline', 'renamed', $1);

-- name: remove_handler
-- Removes a handler with all that waits for it; its name stays. The lock rows go last, when nobody works there any more. Markers
-- of what was set apart count as done now, so that they are swept like all others.
with removed as (
    update "{schema}".handler set state = 'removed'
    where name = $1 and state in ('active', 'paused') returning id, name, origin
), lanes as (
    delete from "{schema}".lane l using removed r where l.handler = r.id
), progress as (
    delete from "{schema}".progress p using removed r where p.handler = r.id
), replays as (
    delete from "{schema}".replay p using removed r where p.handler = r.id
), care as (
    delete from "{schema}".careful c using removed r where c.handler = r.id
), attempts as (
    delete from "{schema}".attempting a using removed r where a.handler = r.id
), tasks as (
    delete from "{schema}".task t using removed r where t.handler = r.id returning 1
), letters as (
    delete from "{schema}".dead d using removed r where d.handler = r.id returning 1
), markers as (
    update "{schema}".marker m set state = 'done', processed_at = clock_timestamp() + $3::int8 * interval '1 ms'
    from removed r where m.handler = r.origin and m.state = 'spilled'
)
insert into "{schema}".audit (at, operator, action, handler, detail)
select
    clock_timestamp() + $3::int8 * interval '1 ms', $2, 'remove', r.name,
    format('%s tasks, %s dead letters', (select count(*) from tasks), (select count(*) from letters))
from removed r;
