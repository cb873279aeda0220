-- Relays: leases of their lanes.

-- name: lease_lane
-- Leases lane ?2 of relay ?1 to process ?3, under fence ?4; no row if another process has it, or if the relay is gone, paused or
-- changed: kinds ?5, order ?6.
-- Index: primary keys of oncebox_handler, oncebox_lease.
insert into oncebox_lease (handler, lane, process, fence)
select h.id, ?2, ?3, ?4 from oncebox_handler h
where h.id = ?1 and h.state = 'active' and h.mode = 'relay' and h.kinds = ?5 and h.ordered is ?6
on conflict (handler, lane) do update set process = excluded.process, fence = excluded.fence
where process is null or process = excluded.process
returning fence;

-- name: is_leased
-- Whether lane ?2 of relay ?1 is leased under fence ?3.
-- Index: primary key of oncebox_lease.
select exists (
    select 1 from oncebox_lease l where l.handler = ?1 and l.lane = ?2 and l.fence = ?3 and l.process is not null
);

-- name: release_lane
-- Ends the lease of a lane.
-- Index: primary key of oncebox_lease.
update oncebox_lease set process = null where handler = ?1 and lane = ?2 and fence = ?3;

-- name: end_leases
-- Ends all leases of a relay: their owners know it as it was.
-- Index: primary key of oncebox_lease.
update oncebox_lease set process = null where handler = ?1;

-- name: free_lanes
-- Ends all leases of a process.
-- Rows: all of oncebox_lease, a few for each relay.
update oncebox_lease set process = null where process = ?1;
