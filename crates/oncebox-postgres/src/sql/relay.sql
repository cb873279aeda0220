-- Relays: leases of their lanes, and ranges of messages under a lease.

-- name: lease_lane
-- Leases a lane to a process, under a new fence; no row if another one has it, or if the relay is gone, paused or changed. What
-- removes the process waits for this transaction.
-- Index: handler_pkey, lane_pkey, process_pkey.
with known as materialized (
    select p.id from "{schema}".process p where p.id = $3 for key share
)
update "{schema}".lane l set process = k.id, fence = nextval('"{schema}".fence')
from known k, "{schema}".handler h
where l.handler = $1 and l.lane = $2 and (l.process is null or l.process = $3) and h.id = l.handler
  and h.state = 'active' and h.mode = 'relay' and h.kinds = $4 and h.ordered is not distinct from $5
returning l.fence;

-- name: read_range
-- Reads the next messages of a leased lane; see the function.
-- Index: dead_order, handler_pkey, lane_pkey, message_pkey, progress_pkey, replay_pkey, task_order.
select * from "{schema}".read_range($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11);

-- name: settle_range
-- Locks a leased lane and appends its progress. No row if the lease has ended.
-- Index: lane_pkey, progress_pkey.
with held as materialized (
    select l.handler, l.lane from "{schema}".lane l
    where l.handler = $1 and l.lane = $2 and l.fence = $3 and l.process is not null
    for update
), advanced as (
    insert into "{schema}".progress (handler, lane, epoch, pos)
    select h.handler, h.lane, $4, $5 from held h where $5::int8 is not null
    on conflict do nothing
)
select 1 as held from held;

-- name: release_lane
-- Ends the lease of a lane.
-- Index: lane_pkey.
update "{schema}".lane set process = null where handler = $1 and lane = $2 and fence = $3;
