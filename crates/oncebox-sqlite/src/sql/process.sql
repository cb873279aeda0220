-- Processes, their heartbeats and their leases.

-- name: enter
-- A process begins to work: id, name, handlers, lease in ms, maximum messages in flight, offset of the clock, whether it moves.
-- Index: primary key of oncebox_process.
insert into oncebox_process (id, name, handlers, lease_ms, in_flight, heartbeat, started_at, moves)
select ?1, ?2, ?3, ?4, ?5, now.ms, now.ms, ?7
from (select cast(unixepoch('subsec') * 1000 as integer) + ?6 as ms) as now
where true
on conflict (id) do update set
    name = excluded.name, handlers = excluded.handlers, lease_ms = excluded.lease_ms, in_flight = excluded.in_flight,
    moves = excluded.moves,
    beats = beats + 1, heartbeat = excluded.heartbeat;

-- name: beat_process
-- A process is alive.
-- Index: primary key of oncebox_process.
update oncebox_process
set heartbeat = cast(unixepoch('subsec') * 1000 as integer) + ?2, beats = beats + 1
where id = ?1;

-- name: leave
-- A process ends as it should.
-- Index: primary key of oncebox_process.
delete from oncebox_process where id = ?1;

-- name: peers
-- All processes but one. A heartbeat in the future, by a clock that was ahead, is as old as it is far off.
-- Rows: all, one for each process.
select
    p.id, p.name, p.handlers, p.beats,
    abs(cast(unixepoch('subsec') * 1000 as integer) + ?2 - p.heartbeat), p.lease_ms, p.moves
from oncebox_process p
where p.id <> ?1
order by p.started_at, p.id;

-- name: remove_crashed
-- Removes a process whose end was seen (?3) or whose lease expired: its handlers, and the maximum number of messages that it had in
-- flight. Its last heartbeat may lie in the future, by a clock that was ahead.
-- Index: primary key of oncebox_process.
delete from oncebox_process
where id = ?1 and (?3 or abs(cast(unixepoch('subsec') * 1000 as integer) + ?2 - heartbeat) > lease_ms)
returning handlers, in_flight;
