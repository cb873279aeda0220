-- Lanes, their locks, and the progress of handlers in them.

-- name: find_layout
-- What is fixed of the log, if there is one.
-- Rows: one at most.
select lanes, hash from "{schema}".layout;

-- name: make_layout
-- Fixes the number of lanes and makes their lock rows: for the appender and for upkeep. One of all who start makes them.
-- Rows: inserts one, and two for each lane.
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

-- name: open_lanes
-- Lock rows of a handler in every lane.
-- Index: lane_pkey.
insert into "{schema}".lane (handler, lane) select $1, l.lane from "{schema}".lane l where l.handler = 0
on conflict do nothing;

-- name: begin_lanes
-- The first progress of handler $1 in every lane: at its start or, if $2 says so, behind its newest message. In an epoch that
-- the handler never had: what may be left of an older one does not count.
-- Index: lane_pkey, message_pkey, progress_pkey.
insert into "{schema}".progress (handler, lane, epoch, pos)
select
    $1, l.lane,
    coalesce((select max(p.epoch) + 1 from "{schema}".progress p where p.handler = $1), 0),
    case when $2 then coalesce((
        select m.pos from "{schema}".message m where m.lane = l.lane order by m.pos desc limit 1
    ), 0) else 0 end
from "{schema}".lane l
where l.handler = 0;

-- name: end_lanes
-- Forgets how far a handler has come, and what it is to run on again.
-- Index: progress_pkey, replay_pkey.
with progress as (
    delete from "{schema}".progress where handler = $1
)
delete from "{schema}".replay where handler = $1;

-- name: close_lanes
-- Deletes the lock rows of a handler.
-- Index: lane_pkey.
delete from "{schema}".lane where handler = $1;

-- name: lock_lanes
-- Waits for lanes of handlers: their tasks change under the lane's lock, and a lease whose commit is still under way is seen.
-- Index: lane_pkey.
select l.lane from "{schema}".lane l
where (l.handler, l.lane) in (select v.handler, v.lane from unnest($1::int4[], $2::int4[]) as v(handler, lane))
order by l.handler, l.lane
for update;

-- name: lock_handler_lanes
-- Waits until no transaction works in any lane of a handler.
-- Index: handler_name_key, lane_pkey.
select l.lane from "{schema}".lane l
where l.handler = (select h.id from "{schema}".handler h where h.name = $1)
order by l.lane
for update;

-- name: lock_upkeep
-- Holds off pruning, and others who register or remove handlers.
-- Index: lane_pkey.
select lane from "{schema}".lane where handler = -1 order by lane for update;
