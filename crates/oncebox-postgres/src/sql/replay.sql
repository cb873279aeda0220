-- Replays: handlers that go back in their lanes.

-- name: replay_targets
-- Where a replay begins, lane by lane: right before the first message that is meant. By time ($1), by place ($2, $3), or with what
-- is there.
select l.lane, first.pos - 1 as target
from "{schema}".lane l
cross join lateral (
    select min(m.pos) as pos from "{schema}".message m
    where m.lane = l.lane
      and ($1::int8 is null or m.received_at >= to_timestamp($1 / 1000.0))
      and ($3::int8 is null or m.pos >= $3)
) as first
where l.handler = 0 and ($2::int4 is null or l.lane = $2) and first.pos is not null;

-- name: replay
-- Moves a handler back in lanes where it has come further; what was set apart behind that is waiting again, except messages that
-- are for this handler alone. The counts.
with target as materialized (
    select t.lane, t.pos as target, p.epoch, p.pos
    from unnest($2::int4[], $3::int8[]) as v(lane, pos)
    cross join lateral (
        -- What was pruned between the search and the locks is not gone over.
        select v.lane, greatest(v.pos, min(m.pos) - 1) as pos from "{schema}".message m where m.lane = v.lane
    ) as t
    cross join lateral (
        select p.epoch, p.pos from "{schema}".progress p
        where p.handler = $1 and p.lane = t.lane
        order by p.epoch desc, p.pos desc limit 1
    ) as p
    where p.pos > t.pos
), begun as (
    insert into "{schema}".progress (handler, lane, epoch, pos)
    select $1, t.lane, t.epoch + 1, t.target from target t
), noted as (
    -- One that is not over yet goes on in the new one.
    insert into "{schema}".replay (handler, lane, epoch, after, until)
    select $1, t.lane, t.epoch + 1, least(t.target, r.after), greatest(t.pos, r.until)
    from target t
    left join "{schema}".replay r on r.handler = $1 and r.lane = t.lane and r.epoch = t.epoch and t.pos < r.until
), tasks as (
    delete from "{schema}".task t using target g, "{schema}".message m
    where t.handler = $1 and t.lane = g.lane and t.pos > g.target
      and m.lane = t.lane and m.pos = t.pos and m.target is null
    returning 1
), letters as (
    delete from "{schema}".dead d using target g, "{schema}".message m
    where d.handler = $1 and d.lane = g.lane and d.pos > g.target
      and m.lane = d.lane and m.pos = d.pos and m.target is null
    returning 1
), counted as (
    select
        coalesce((select sum(t.pos - t.target) from target t), 0)::int8 as positions,
        (select count(*) from tasks) as tasks,
        (select count(*) from letters) as dead
), audited as (
    insert into "{schema}".audit (at, operator, action, handler, detail)
    select
        clock_timestamp() + $6::int8 * interval '1 ms', $4, 'replay', h.name,
        format('from %s: %s positions, %s tasks, %s dead letters', $5::text, c.positions, c.tasks, c.dead)
    from "{schema}".handler h cross join counted c where h.id = $1
)
select positions, tasks, dead from counted;
