-- Replays: handlers that go back in their lanes.

-- name: replay_lanes
-- The lanes of handler ?1, how far it has come there, and the first message up to that: the oldest, received at ?2 or later, or
-- from position ?4 of lane ?3 on. Also what it runs again on already.
-- Index: primary keys of oncebox_message, oncebox_progress, oncebox_replay.
with recursive lane(n) as (
    select 0 from oncebox_layout
    union all
    select n + 1 from lane where n + 1 < (select lanes from oncebox_layout)
), reached as materialized (
    select lane.n as lane, p.epoch, p.pos
    from lane
    cross join oncebox_progress p on (p.handler, p.lane, p.epoch, p.pos) = (
        select p.handler, p.lane, p.epoch, p.pos from oncebox_progress p
        where p.handler = ?1 and p.lane = lane.n
        order by p.epoch desc, p.pos desc limit 1
    )
    where ?3 is null or lane.n = ?3
), back as materialized (
    select
        reached.lane, reached.epoch, reached.pos,
        (
            select m.pos from oncebox_message m
            where m.lane = reached.lane and m.pos >= coalesce(?4, 0) and m.pos <= reached.pos
              and (?2 is null or m.received_at >= ?2)
            order by m.pos limit 1
        ) as first
    from reached
)
select back.lane, back.epoch, back.pos, back.first, r.after, r.until
from back
left join oncebox_replay r on r.handler = ?1 and r.lane = back.lane and r.epoch = back.epoch
where back.first is not null;

-- name: begin_replay
-- What a handler is to run on again in a lane: handler, lane, epoch, after, until.
-- Index: primary key of oncebox_replay.
insert into oncebox_replay (handler, lane, epoch, after, until) values (?1, ?2, ?3, ?4, ?5);

-- name: drop_replay
-- Forgets what a handler is to run on again in a lane.
-- Index: primary key of oncebox_replay.
delete from oncebox_replay where handler = ?1 and lane = ?2;

-- name: drop_replays
-- Forgets what a handler is to run on again.
-- Index: primary key of oncebox_replay.
delete from oncebox_replay where handler = ?1;

-- name: drop_tasks_behind
-- Drops the tasks of handler ?1 in lane ?2 behind position ?3, except those that are for this handler alone.
-- Index: primary keys of oncebox_message, oncebox_task.
delete from oncebox_task
where handler = ?1 and lane = ?2 and pos > ?3
  and (select m.target from oncebox_message m where m.lane = ?2 and m.pos = oncebox_task.pos) is null;

-- name: drop_dead_behind
-- Drops the dead letters of handler ?1 in lane ?2 behind position ?3, except those that are for this handler alone.
-- Index: primary keys of oncebox_dead, oncebox_message.
delete from oncebox_dead
where handler = ?1 and lane = ?2 and pos > ?3
  and (select m.target from oncebox_message m where m.lane = ?2 and m.pos = oncebox_dead.pos) is null;
