-- Lanes, and the progress of handlers in them.

-- name: find_layout
-- What is fixed of the log; no row where there is none.
-- Rows: one at most.
select lanes, hash from oncebox_layout;

-- name: make_layout
-- Fixes the number of lanes, and how an ordering key becomes one of them.
-- Rows: inserts one.
insert into oncebox_layout (lanes, hash) values (?1, ?2);

-- name: begin_lanes
-- The first progress of handler ?1 in every lane: at its start or, if ?2 says so, behind its newest message. In an epoch that
-- the handler never had: what may be left of an older one does not count.
-- Index: primary keys of oncebox_message, oncebox_progress.
with recursive lane(n) as (
    select 0 from oncebox_layout
    union all
    select n + 1 from lane where n + 1 < (select lanes from oncebox_layout)
)
insert into oncebox_progress (handler, lane, epoch, pos, at)
select
    ?1, lane.n,
    coalesce((select max(p.epoch) + 1 from oncebox_progress p where p.handler = ?1), 0),
    case when ?2 then coalesce((
        select m.pos from oncebox_message m where m.lane = lane.n order by m.pos desc limit 1
    ), 0) else 0 end,
    cast(unixepoch('subsec') * 1000 as integer) + ?3
from lane;

-- name: advance
-- Appends how far a handler has come in a lane. The same once more says nothing new.
-- Index: primary key of oncebox_progress.
insert into oncebox_progress (handler, lane, epoch, pos, at)
values (?1, ?2, ?3, ?4, cast(unixepoch('subsec') * 1000 as integer) + ?5)
on conflict do nothing;

-- name: drop_progress
-- Forgets how far a handler has come.
-- Index: primary key of oncebox_progress.
delete from oncebox_progress where handler = ?1;

-- name: prune_progress
-- Of the progress in lane ?1, only the newest matters; the rest records when messages were done, for as long as these are
-- kept, which is from ?2 on.
-- Index: primary key of oncebox_progress; unique name of oncebox_handler.
with newest as materialized (
    select
        h.id as handler,
        (
            select p.epoch from oncebox_progress p
            where p.handler = h.id and p.lane = ?1
            order by p.epoch desc, p.pos desc limit 1
        ) as epoch,
        (
            select p.pos from oncebox_progress p
            where p.handler = h.id and p.lane = ?1
            order by p.epoch desc, p.pos desc limit 1
        ) as pos
    from oncebox_handler h
)
delete from oncebox_progress
where (handler, lane, epoch, pos) in (
    select p.handler, p.lane, p.epoch, p.pos
    from newest
    cross join oncebox_progress p
        on p.handler = newest.handler and p.lane = ?1
        and (p.epoch, p.pos) < (newest.epoch, newest.pos)
    where p.at < ?2
);
