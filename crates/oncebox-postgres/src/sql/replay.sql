-- Replays: handlers that go back in their lanes.

-- name: first_messages
-- The first message of each lane that a replay is to run again on: the oldest, received at $1 or later, or from position $3 of
-- lane $2 on.
-- Index: lane_pkey, message_pkey.
select l.lane, first.pos
from "{schema}".lane l
cross join lateral (
    select min(m.pos) as pos from "{schema}".message m
    where m.lane = l.lane
      and ($1::int8 is null or m.received_at >= to_timestamp($1 / 1000.0))
      and ($3::int8 is null or m.pos >= $3)
) as first
where l.handler = 0 and ($2::int4 is null or l.lane = $2) and first.pos is not null;

-- name: replay_lanes
-- How far handler $1 has come in lanes ($2), and the first message of each that is to run again ($3). Also what it runs again on
-- already.
-- Index: message_pkey, progress_pkey, replay_pkey.
select v.lane, p.epoch, p.pos, f.first, r.after, r.until
from unnest($2::int4[], $3::int8[]) as v(lane, pos)
cross join lateral (
    -- What was pruned between the search and the locks is not gone over.
    select greatest(v.pos, min(m.pos)) as first from "{schema}".message m where m.lane = v.lane
) as f
cross join lateral (
    select p.epoch, p.pos from "{schema}".progress p
    where p.handler = $1 and p.lane = v.lane
    order by p.epoch desc, p.pos desc limit 1
) as p
left join "{schema}".replay r on r.handler = $1 and r.lane = v.lane and r.epoch = p.epoch;

-- name: replay
-- Begins new epochs of handler $1: lanes ($2), epochs ($3), positions ($4), and behind ($5) and up to ($6) which position a run is
-- a replay. Tasks and dead letters behind the positions are waiting again, except messages that are for this handler alone. Leases of its
-- lanes end. The counts.
-- Index: dead_pkey, lane_pkey, message_pkey, task_pkey.
with target as materialized (
    select v.lane, v.epoch, v.pos, v.after, v.until
    from unnest($2::int4[], $3::int4[], $4::int8[], $5::int8[], $6::int8[]) as v(lane, epoch, pos, after, until)
), ended as (
    update "{schema}".lane set process = null where handler = $1 and process is not null
), begun as (
    insert into "{schema}".progress (handler, lane, epoch, pos) select $1, t.lane, t.epoch, t.pos from target t
), noted as (
    insert into "{schema}".replay (handler, lane, epoch, after, until)
    select $1, t.lane, t.epoch, t.after, t.until from target t
), tasks as (
    delete from "{schema}".task t using target g, "{schema}".message m
    where t.handler = $1 and t.lane = g.lane and t.pos > g.pos
      and m.lane = t.lane and m.pos = t.pos and m.target is null
    returning 1
), letters as (
    delete from "{schema}".dead d using target g, "{schema}".message m
    where d.handler = $1 and d.lane = g.lane and d.pos > g.pos
      and m.lane = d.lane and m.pos = d.pos and m.target is null
    returning 1
)
select (select count(*) from tasks) as tasks, (select count(*) from letters) as dead;
