-- Handlers: registration, and what operators do with them.

-- name: find_handlers
-- Reads the handlers of these names, a JSON array. The row of a former name has the handler's name of now.
-- Index: primary key of oncebox_handler; unique name of oncebox_handler.
select
    h.id, h.name,
    case when h.state = 'renamed' then now.name else h.origin end,
    h.kinds, h.mode, h.ordered, h.state, h.keep_ms
from json_each(?1) as wanted
cross join oncebox_handler h on h.name = wanted.value
left join oncebox_handler now on now.id = h.renamed_to;

-- name: find_leftovers
-- What a handler still has to do in its mode: whether messages of its kinds wait in the log, whether there are tasks or dead letters, and
-- whether keys are marked that were never accepted, or done although their messages are still to come.
-- Index: primary keys of oncebox_dead, oncebox_handler, oncebox_marker, oncebox_message, oncebox_progress, oncebox_task.
with recursive lane(n) as (
    select 0 from oncebox_layout
    union all
    select n + 1 from lane where n + 1 < (select lanes from oncebox_layout)
), reached as materialized (
    select lane.n as lane, (
        select p.pos from oncebox_progress p
        where p.handler = ?1 and p.lane = lane.n
        order by p.epoch desc, p.pos desc limit 1
    ) as pos
    from lane
)
select
    exists (
        select 1 from reached
        cross join oncebox_message m on m.lane = reached.lane and m.pos > reached.pos
        cross join oncebox_handler h on h.id = ?1
        where m.target is null and case
            when h.mode in ('stored', 'mixed') then exists (select 1 from json_each(h.kinds) k where k.value = m.kind)
            when h.mode = 'relay' and m.message_id is not null
            then exists (select 1 from json_each(h.kinds) k where m.kind glob k.value)
        end
    ),
    exists (select 1 from oncebox_task t where t.handler = ?1)
    or exists (select 1 from oncebox_dead d where d.handler = ?1),
    exists (
        select 1 from oncebox_handler h
        cross join oncebox_marker k on k.handler = h.origin
        where h.id = ?1 and not exists (
            select 1 from oncebox_marker a where a.handler = '@accept' and a.kind = k.kind and a.key = k.key
        )
    ),
    exists (
        select 1 from oncebox_handler h
        cross join oncebox_marker k on k.handler = h.origin and k.state = 'done'
        cross join oncebox_marker a on a.handler = '@accept' and a.kind = k.kind and a.key = k.key
        where h.id = ?1 and (
            a.pos > (select reached.pos from reached where reached.lane = a.lane)
            or exists (select 1 from oncebox_task t where t.handler = h.id and t.lane = a.lane and t.pos = a.pos)
        )
    );

-- name: can_have_tasks
-- Whether a handler is there that can have tasks.
-- Index: primary key of oncebox_handler.
select 1 from oncebox_handler where id = ?1 and state in ('active', 'paused') and mode <> 'inline';

-- name: add_handler
-- Adds a handler, under its first name.
-- Index: primary key of oncebox_handler.
insert into oncebox_handler (name, origin, kinds, mode, ordered, keep_ms, state, registered_at)
values (?1, ?1, ?2, ?3, ?4, ?5, 'active', cast(unixepoch('subsec') * 1000 as integer) + ?6)
returning id;

-- name: change_handler
-- Changes how messages reach a handler, and what dead letters mean for their keys.
-- Index: primary key of oncebox_handler.
update oncebox_handler set kinds = ?2, mode = ?3, ordered = ?4, keep_ms = ?5 where id = ?1;

-- name: revive_handler
-- Lets a handler that was removed begin again.
-- Index: primary key of oncebox_handler.
update oncebox_handler set kinds = ?2, mode = ?3, ordered = ?4, keep_ms = ?5, state = 'active' where id = ?1;

-- name: set_state
-- Pauses a handler, or lets it go on.
-- Index: primary key of oncebox_handler.
update oncebox_handler set state = ?2 where id = ?1;

-- name: free_name
-- Frees a name that this very handler had before.
-- Index: unique name of oncebox_handler.
delete from oncebox_handler where name = ?2 and renamed_to = ?1;

-- name: rename_handler
-- Gives a handler another name.
-- Index: primary key of oncebox_handler.
update oncebox_handler set name = ?2 where id = ?1;

-- name: reserve_name
-- Keeps a name (?2) taken that a handler had before. Its markers have the handler's first name.
-- Index: primary key of oncebox_handler.
insert into oncebox_handler (name, origin, kinds, mode, state, renamed_to, registered_at)
select ?2, h.origin, '[]', 'inline', 'renamed', h.id, cast(unixepoch('subsec') * 1000 as integer) + ?3
from oncebox_handler h
where h.id = ?1;

-- name: remove_handler
-- Removes a handler; its name stays taken.
-- Index: primary key of oncebox_handler.
update oncebox_handler set state = 'removed' where id = ?1;
