-- Handlers: registration, and what operators do with them.

-- name: find_handlers
-- Handlers by name; of a name that one had before, the name that it has now.
-- Index: handler_name_key, handler_pkey.
select
    h.id, h.name, coalesce(n.name, h.origin) as origin, h.kinds, h.mode, h.ordered, h.state,
    floor(extract(epoch from h.keep) * 1000)::int8 as keep_ms
from "{schema}".handler h
left join "{schema}".handler n on n.id = h.renamed_to
where h.name = any ($1);

-- name: find_leftovers
-- What a handler still has to do: messages ahead of its progress, tasks or dead letters; keys that came inline, which are those that
-- were never accepted; and messages that were done inline while they wait in the log.
-- Index: dead_pkey, handler_pkey, lane_pkey, marker_pkey, message_pkey, progress_pkey, task_pkey.
select
    exists (
        select from "{schema}".lane l
        cross join lateral (
            select p.pos from "{schema}".progress p
            where p.handler = h.id and p.lane = l.lane
            order by p.epoch desc, p.pos desc limit 1
        ) as p
        join "{schema}".message m on m.lane = l.lane and m.pos > p.pos and m.target is null
            and "{schema}".reads(h.mode, h.kinds, m.kind, m.message_id)
        where l.handler = h.id
    ) as waiting,
    exists (select from "{schema}".task t where t.handler = h.id)
        or exists (select from "{schema}".dead d where d.handler = h.id) as has_tasks,
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
-- Index: handler_name_key.
insert into "{schema}".handler (name, origin, kinds, mode, ordered, keep, state)
values ($1, $1, $2, $3, $4, $5::int8 * interval '1 ms', 'active')
on conflict do nothing
returning id;

-- name: change_handler
-- What is wanted of a handler now. Leases of its lanes end: their owners know it as it was.
-- Index: handler_pkey, lane_pkey.
with ended as (
    update "{schema}".lane set process = null where handler = $1 and process is not null
)
update "{schema}".handler set kinds = $2, mode = $3, ordered = $4, keep = $5::int8 * interval '1 ms' where id = $1;

-- name: revive_handler
-- Lets a removed handler begin again.
-- Index: handler_pkey.
update "{schema}".handler
set state = 'active', kinds = $2, mode = $3, ordered = $4, keep = $5::int8 * interval '1 ms'
where id = $1;

-- name: set_state
-- Pauses a handler, or lets it go on. Leases of its lanes end.
-- Index: handler_pkey, lane_pkey.
with ended as (
    update "{schema}".lane set process = null where handler = $1 and process is not null
)
update "{schema}".handler set state = $2 where id = $1;

-- name: free_name
-- Frees a name that this very handler had before.
-- Index: handler_name_key.
delete from "{schema}".handler where name = $2 and renamed_to = $1;

-- name: rename_handler
-- Gives a handler another name.
-- Index: handler_pkey.
update "{schema}".handler set name = $2 where id = $1;

-- name: reserve_name
-- Keeps a name ($2) taken that a handler had before. Its markers have the handler's first name.
-- Index: handler_pkey.
insert into "{schema}".handler (name, origin, kinds, mode, state, renamed_to)
select $2, h.origin, '{}', 'inline', 'renamed', h.id
from "{schema}".handler h
where h.id = $1;

-- name: remove_handler
-- Removes handler $1 with all that waits for it; its name stays. The lock rows go last, when no process works there any more. Markers
-- of its spilled messages, by its first name ($2), count as done now, so that they are swept like all others.
-- The counts.
-- Index: attempting_pkey, careful_pkey, dead_pkey, handler_pkey, lane_pkey, marker_pkey, progress_pkey, replay_pkey,
-- task_pkey.
with removed as (
    update "{schema}".handler set state = 'removed' where id = $1
), lanes as (
    delete from "{schema}".lane where handler = $1
), progress as (
    delete from "{schema}".progress where handler = $1
), replays as (
    delete from "{schema}".replay where handler = $1
), care as (
    delete from "{schema}".careful where handler = $1
), attempts as (
    delete from "{schema}".attempting where handler = $1
), tasks as (
    delete from "{schema}".task where handler = $1 returning 1
), letters as (
    delete from "{schema}".dead where handler = $1 returning 1
), markers as (
    update "{schema}".marker set state = 'done', processed_at = clock_timestamp() + $3::int8 * interval '1 ms'
    where handler = $2 and state = 'spilled'
)
select (select count(*) from tasks) as tasks, (select count(*) from letters) as dead;
