-- Processes, their heartbeats and their leases.

-- name: enter
-- A process begins to work.
-- Index: process_pkey.
insert into "{schema}".process (id, name, handlers, lease, in_flight, heartbeat, started_at, moves)
select $1, $2, $3, $4::int8 * interval '1 ms', $5, now.at, now.at, $7
from (select clock_timestamp() + $6::int8 * interval '1 ms' as at) as now;

-- name: beat_process
-- A process is alive.
-- Index: process_pkey.
update "{schema}".process set beats = beats + 1, heartbeat = clock_timestamp() + $2::int8 * interval '1 ms' where id = $1;

-- name: leave
-- A process ends as it should.
-- Index: process_pkey. Rows: all of attempting, one for each message that runs with a note.
with noted as (
    delete from "{schema}".attempting where process = $1
)
delete from "{schema}".process where id = $1;

-- name: peers
-- All processes but one. While the server was down no heartbeat could arrive.
-- Rows: all, one for each process.
select
    p.id, p.name, p.handlers, p.beats,
    least(
        abs(floor(extract(epoch from clock_timestamp() - p.heartbeat) * 1000)::int8 + $2::int8),
        floor(extract(epoch from clock_timestamp() - pg_postmaster_start_time()) * 1000)::int8 + $2::int8
    ) as silent_ms,
    floor(extract(epoch from p.lease) * 1000)::int8 as lease_ms,
    p.moves
from "{schema}".process p
where p.id <> $1
order by p.started_at, p.id;

-- name: remove_crashed
-- Removes a process whose end was seen ($3) or whose lease expired. No row if it is alive. Its last heartbeat may lie in the future,
-- by the clock of a server that was the primary before. While the server was down no heartbeat could arrive.
-- Index: process_pkey.
delete from "{schema}".process p
using (select clock_timestamp() + $2::int8 * interval '1 ms' as at) as now
where p.id = $1 and ($3 or (
    p.heartbeat not between now.at - p.lease and now.at + p.lease and pg_postmaster_start_time() < now.at - p.lease
))
returning p.handlers, p.in_flight;
