-- Lanes, their locks, and the progress of handlers in them.

-- name: find_layout
-- What is fixed of the log, if there is one.
select lanes, hash from "{schema}".layout;

-- name: make_layout
-- Fixes the number of lanes and makes their lock rows: for the appender and for upkeep. One of all who start makes them.
with made as (
    insert into "{schema}".layout (lanes, hash) values ($1, $2)
    on conflict do nothing
    returning lanes
)
insert into "{schema}".lane (handler, lane)
select reserved.handler, lane.number
from made
cross join generate_series(0, made.lanes - 1) as lane(number)
cross join (values (0), (-1)) as reserved(handler);

-- name: begin_lanes
-- Lock rows of a handler in every lane, and, where it reads the log ($3), its first progress: from the beginning, or behind what
-- is there now.
with lanes as (
    select l.lane, case when $2 then coalesce((
        select m.pos from "{schema}".message m where m.lane = l.lane order by m.pos desc limit 1
    ), 0) else 0 end as pos
    from "{schema}".lane l
    where l.handler = 0
), locks as (
    insert into "{schema}".lane (handler, lane) select $1, lane from lanes on conflict do nothing
)
insert into "{schema}".progress (handler, lane, epoch, pos) select $1, lane, 0, pos from lanes where $3;

-- name: end_lanes
-- A handler reads the log no more; without tasks ($2), it needs no locks either.
with progress as (
    delete from "{schema}".progress where handler = $1
), replay as (
    delete from "{schema}".replay where handler = $1
)
delete from "{schema}".lane where handler = $1 and not $2;

-- name: lock_lanes
-- Waits for lanes of handlers: their tasks change under the lane's lock, and a lease whose commit is still under way is seen.
select l.lane from "{schema}".lane l
where (l.handler, l.lane) in (select v.handler, v.lane from unnest($1::int4[], $2::int4[]) as v(handler, lane))
order by l.handler, l.lane
for update;

-- name: lock_handler_lanes
-- Waits until nobody works in any lane of a handler.
select l.lane from "{schema}".lane l
where l.handler = (select h.id from "{schema}".handler h where h.name = $1)
order by l.lane
for update;

-- name: lock_upkeep
-- Holds off pruning, and others who register or remove handlers.
select lane from "{schema}".lane where handler = -1 order by lane for update;
