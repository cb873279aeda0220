-- Work: finding it, and taking it.

-- name: look
-- Where there is work for these handlers, a JSON array of numbers: a row for each lane that has some, and
-- one, without a handler, that says in how many ms the next task is due where none is now. Of ordered handlers, tasks that
-- are held back do not count: as in due_near, and where more than 256 are due, as in due_heads.
-- Index: primary keys of oncebox_careful, oncebox_handler, oncebox_lease, oncebox_message, oncebox_progress, oncebox_task;
-- oncebox_dead_order, oncebox_task_due, oncebox_task_free, oncebox_task_order.
with recursive lane(n) as (
    select 0 from oncebox_layout
    union all
    select n + 1 from lane where n + 1 < (select lanes from oncebox_layout)
), newest as materialized (
    select lane.n, (
        select m.pos from oncebox_message m where m.lane = lane.n order by m.pos desc limit 1
    ) as pos
    from lane
), now(ms) as materialized (
    select cast(unixepoch('subsec') * 1000 as integer) + ?2
), seen as materialized (
    select
        h.id as handler, h.ordered, newest.n as lane,
        coalesce(newest.pos > (
            select p.pos from oncebox_progress p
            where p.handler = h.id and p.lane = newest.n
            order by p.epoch desc, p.pos desc limit 1
        ) and not (h.mode = 'relay' and exists (
            select 1 from oncebox_lease l
            where l.handler = h.id and l.lane = newest.n and l.process is not null
        )), 0) as messages,
        case when h.ordered is null then exists (
            select 1 from oncebox_task t
            where t.handler = h.id and t.lane = newest.n and t.owner is null and t.due_at <= now.ms
        )
        else exists (
            select 1
            from (
                select t.pos, t.order_by from oncebox_task t
                where t.handler = h.id and t.lane = newest.n and t.owner is null and t.due_at <= now.ms
                order by t.due_at, t.pos
                limit 256
            ) as near
            where near.order_by is null or not (
                exists (
                    select 1 from oncebox_task earlier
                    where earlier.handler = h.id and earlier.lane = newest.n
                      and earlier.order_by = near.order_by and earlier.pos < near.pos
                      and not (earlier.scheduled and earlier.due_at > now.ms)
                )
                or h.ordered = 'hold' and exists (
                    select 1 from oncebox_dead d
                    where d.handler = h.id and d.lane = newest.n and d.order_by = near.order_by
                      and d.pos < near.pos
                )
            )
        )
        or exists (
            select 1 from oncebox_task t
            where t.handler = h.id and t.lane = newest.n and t.owner is null and t.due_at <= now.ms
            limit 1 offset 256
        )
        and (
            exists (
                select 1 from oncebox_task t indexed by oncebox_task_free
                where t.handler = h.id and t.lane = newest.n and t.owner is null and t.order_by is null
                  and t.due_at <= now.ms
            )
            or exists (
                with recursive key(order_by) as (
                    select (
                        select t.order_by from oncebox_task t
                        where t.handler = h.id and t.lane = newest.n and t.order_by is not null
                        order by t.order_by limit 1
                    )
                    union all
                    select (
                        select t.order_by from oncebox_task t
                        where t.handler = h.id and t.lane = newest.n and t.order_by > key.order_by
                        order by t.order_by limit 1
                    )
                    from key where key.order_by is not null
                )
                select 1
                from key
                cross join oncebox_task head on head.handler = h.id and head.lane = newest.n and head.pos = (
                    select t.pos from oncebox_task t
                    where t.handler = h.id and t.lane = newest.n and t.order_by = key.order_by
                      and not (t.scheduled and t.due_at > now.ms)
                    order by t.pos limit 1
                )
                where head.owner is null and head.due_at <= now.ms
                  and not (h.ordered = 'hold' and exists (
                    select 1 from oncebox_dead d
                    where d.handler = h.id and d.lane = newest.n and d.order_by = key.order_by
                      and d.pos < head.pos
                  ))
            )
        )
        end as tasks
    from json_each(?1) as wanted
    cross join oncebox_handler h on h.id = wanted.value and h.state = 'active'
    cross join newest
    cross join now
), next as (
    -- The first that could run then: in front of it only what is scheduled for later.
    select (
        select t.due_at from oncebox_task t
        where t.handler = s.handler and t.lane = s.lane and t.owner is null and t.due_at > now.ms
          and not (
            s.ordered is not null and t.order_by is not null and (
                exists (
                    select 1 from oncebox_task earlier
                    where earlier.handler = s.handler and earlier.lane = s.lane
                      and earlier.order_by = t.order_by and earlier.pos < t.pos
                      and not (earlier.scheduled and earlier.due_at > now.ms)
                )
                or s.ordered = 'hold' and exists (
                    select 1 from oncebox_dead d
                    where d.handler = s.handler and d.lane = s.lane and d.order_by = t.order_by and d.pos < t.pos
                )
            )
          )
        order by t.due_at limit 1
    ) - now.ms as due_in
    from seen s
    cross join now
    where not s.tasks
)
select
    s.handler, s.lane, s.messages, s.tasks,
    exists (
        select 1 from oncebox_careful c where c.handler = s.handler and c.lane = s.lane and c.messages_left > 0
    ), null
from seen s where s.messages or s.tasks
union all
select null, null, null, null, null, min(next.due_in) from next;

-- name: find_progress
-- How far a handler has come in a lane, the lane's newest position, whether it is ordered, and between which positions
-- it runs again; no row if the handler is gone or paused, or takes other kinds than ?3 by now: a straggler must not
-- pass over what it does not take.
-- Index: primary keys of oncebox_handler, oncebox_message, oncebox_progress, oncebox_replay.
select
    p.epoch, p.pos,
    coalesce((select m.pos from oncebox_message m where m.lane = ?2 order by m.pos desc limit 1), 0),
    h.ordered, r.after, r.until
from oncebox_handler h
cross join oncebox_progress p on p.handler = h.id and p.lane = ?2
left join oncebox_replay r on r.handler = p.handler and r.lane = p.lane and r.epoch = p.epoch
where h.id = ?1 and h.state = 'active' and h.kinds = ?3 and h.mode = ?4 and h.ordered is ?5
order by p.epoch desc, p.pos desc
limit 1;

-- name: take
-- Messages of lane ?1 behind ?2 and up to ?3, of the kinds in a JSON array ?4: at most ?5 of them, ending with the one that
-- exceeds ?6 bytes of bodies; in no order, which would copy the bodies once more. For handler ?8, which is ordered as ?9
-- says, and runs again on what is behind ?10 and up to ?11. With ?12 it is a relay: published messages only, and kinds are patterns.
-- Index: primary key of oncebox_message; oncebox_dead_order, oncebox_task_order.
with found as materialized (
    select near.pos, sum(near.bytes) over (
        order by near.pos rows between unbounded preceding and 1 preceding
    ) as bytes_before
    from (
        select m.pos, length(m.body) as bytes from oncebox_message m
        where m.lane = ?1 and m.pos > ?2 and m.pos <= ?3 and m.target is null
          and case
            when ?12 then m.message_id is not null and exists (select 1 from json_each(?4) k where m.kind glob k.value)
            else m.kind in (select value from json_each(?4))
          end
        order by m.pos
        limit ?5
    ) as near
)
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body, m.occurred_at, m.due_at,
    max(m.due_at - (cast(unixepoch('subsec') * 1000 as integer) + ?7), 0),
    max(cast(unixepoch('subsec') * 1000 as integer) + ?7 - m.received_at, 0), 0, null, 0,
    ?9 is not null and m.order_by is not null and (
        exists (
            select 1 from oncebox_task t
            where t.handler = ?8 and t.lane = ?1 and t.order_by = m.order_by and t.pos < m.pos
              and not (t.scheduled and t.due_at > cast(unixepoch('subsec') * 1000 as integer) + ?7)
        )
        or ?9 = 'hold' and exists (
            select 1 from oncebox_dead d
            where d.handler = ?8 and d.lane = ?1 and d.order_by = m.order_by and d.pos < m.pos
        )
    ),
    coalesce(m.pos > ?10 and m.pos <= ?11, 0), 0, 0, m.message_id
from found
cross join oncebox_message m on m.lane = ?1 and m.pos = found.pos
where coalesce(found.bytes_before, 0) < max(?6, 1);

-- name: find_taker
-- Whether a handler's tasks are ordered; no row if the handler is gone or paused, or takes other kinds than ?2 by now. What
-- was spilled is for this handler alone: its kinds may have changed meanwhile.
-- Index: primary key of oncebox_handler.
select h.ordered from oncebox_handler h
where h.id = ?1 and h.state = 'active' and (h.kinds = ?2 or h.mode = 'spill')
  and h.mode = ?3 and h.ordered is ?4;

-- name: due_tasks
-- Tasks of handler ?1, which is not ordered, in lane ?2 that are due: at most ?3, the longest due first.
-- Index: oncebox_task_due.
select t.pos
from oncebox_task t
where t.handler = ?1 and t.lane = ?2 and t.owner is null
  and t.due_at <= cast(unixepoch('subsec') * 1000 as integer) + ?4
order by t.due_at, t.pos
limit ?3;

-- name: due_near
-- The first ?3 tasks of handler ?1, which is ordered as ?5 says, in lane ?2 that are due, the longest due first; and whether
-- each is free to run: the head of its ordering key, or without one.
-- Index: oncebox_dead_order, oncebox_task_due, oncebox_task_order.
select near.pos, near.order_by, near.order_by is null or not (
    exists (
        select 1 from oncebox_task earlier
        where earlier.handler = ?1 and earlier.lane = ?2 and earlier.order_by = near.order_by
          and earlier.pos < near.pos
          and not (earlier.scheduled and earlier.due_at > cast(unixepoch('subsec') * 1000 as integer) + ?4)
    )
    or ?5 = 'hold' and exists (
        select 1 from oncebox_dead d
        where d.handler = ?1 and d.lane = ?2 and d.order_by = near.order_by and d.pos < near.pos
    )
)
from (
    select t.pos, t.order_by from oncebox_task t
    where t.handler = ?1 and t.lane = ?2 and t.owner is null
      and t.due_at <= cast(unixepoch('subsec') * 1000 as integer) + ?4
    order by t.due_at, t.pos
    limit ?3
) as near;

-- name: due_heads
-- Tasks of handler ?1, which is ordered as ?5 says, in lane ?2 that are due and not held back: at most ?3, the longest due
-- first. Of each ordering key only the head, which is its first task but for those that are scheduled for later. From key to
-- key it goes along the index, so that what is parked behind a head costs nothing.
-- Index: primary key of oncebox_task; oncebox_dead_order, oncebox_task_free, oncebox_task_order.
with recursive now(ms) as materialized (
    select cast(unixepoch('subsec') * 1000 as integer) + ?4
), key(order_by) as (
    select (
        select t.order_by from oncebox_task t
        where t.handler = ?1 and t.lane = ?2 and t.order_by is not null
        order by t.order_by limit 1
    )
    union all
    select (
        select t.order_by from oncebox_task t
        where t.handler = ?1 and t.lane = ?2 and t.order_by > key.order_by
        order by t.order_by limit 1
    )
    from key where key.order_by is not null
), free as (
    select t.pos, t.due_at
    from oncebox_task t indexed by oncebox_task_free
    where t.handler = ?1 and t.lane = ?2 and t.owner is null and t.order_by is null
      and t.due_at <= cast(unixepoch('subsec') * 1000 as integer) + ?4
    order by t.due_at, t.pos
    limit ?3
)
select head.pos, key.order_by, head.due_at
from now
cross join key
cross join oncebox_task head on head.handler = ?1 and head.lane = ?2 and head.pos = (
    select t.pos from oncebox_task t
    where t.handler = ?1 and t.lane = ?2 and t.order_by = key.order_by
      and not (t.scheduled and t.due_at > now.ms)
    order by t.pos limit 1
)
where head.owner is null and head.due_at <= now.ms
  and not (?5 = 'hold' and exists (
    select 1 from oncebox_dead d
    where d.handler = ?1 and d.lane = ?2 and d.order_by = key.order_by and d.pos < head.pos
  ))
union all
select free.pos, null, free.due_at from free
order by 3, 1
limit ?3;

-- name: due_behind
-- The tasks that may follow a head, which is at ?4, of ordering key ?3: at most ?5, in their order, up to the first that is
-- not due or that a process runs, or to a dead letter where those hold (?7). Those that are scheduled for later are left
-- out.
-- Index: oncebox_dead_order, oncebox_task_order.
with near as (
    select t.pos, t.owner is not null or t.due_at > cast(unixepoch('subsec') * 1000 as integer) + ?6 as is_blocked
    from oncebox_task t
    where t.handler = ?1 and t.lane = ?2 and t.order_by = ?3 and t.pos > ?4
      and not (t.scheduled and t.due_at > cast(unixepoch('subsec') * 1000 as integer) + ?6)
    order by t.pos
    limit ?5
)
select open.pos
from (select near.pos, max(near.is_blocked) over (order by near.pos) as is_cut from near) as open
where not open.is_cut
  and not (?7 = 'hold' and exists (
    select 1 from oncebox_dead d
    where d.handler = ?1 and d.lane = ?2 and d.order_by = ?3 and d.pos < open.pos
  ));

-- name: take_tasks
-- The tasks of handler ?1 in lane ?2 at these positions, a JSON array, with their messages; in the order of the array, with
-- which the join begins. They are still to be removed.
-- Index: primary keys of oncebox_handler, oncebox_marker, oncebox_message, oncebox_replay, oncebox_task.
select
    m.lane, m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers,
    coalesce(t.body, m.body), m.occurred_at, m.due_at, 0, max(cast(unixepoch('subsec') * 1000 as integer) + ?4 - m.received_at, 0),
    t.failures, t.attempts, t.body is not null, 0,
    m.target is null and exists (
        select 1 from oncebox_replay r
        where r.handler = ?1 and r.lane = ?2 and m.pos > r.after and m.pos <= r.until
    ),
    t.crashes,
    exists (
        select 1 from oncebox_marker k
        where k.handler = h.origin and k.kind = m.kind and k.key = m.key and k.state = 'spilled'
    ),
    m.message_id
from json_each(?3) as chosen
cross join oncebox_task t on t.handler = ?1 and t.lane = ?2 and t.pos = chosen.value
cross join oncebox_message m on m.lane = t.lane and m.pos = t.pos
cross join oncebox_handler h on h.id = t.handler;
