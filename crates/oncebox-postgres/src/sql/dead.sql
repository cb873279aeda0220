-- Dead letters, and what operators do with them.

-- name: write_dead_letters
-- Messages that used up their attempts, with the last failed try.
-- Index: dead_pkey.
insert into "{schema}".dead (handler, lane, pos, order_by, error, attempts, body, died_at)
select
    $1, $2, v.pos, v.order_by, v.error,
    "{schema}".add_attempt(v.attempts::jsonb, v.failures, now.at, v.error),
    v.body, now.at
from unnest(
    $3::int8[], $4::bytea[], $5::int4[], $6::int8[], $7::text[], $8::text[], $9::bytea[], $11::bool[], $12::int4[]
) as v(pos, order_by, failures, due_in_ms, error, attempts, body, scheduled, crashes)
cross join (select clock_timestamp() + $10::int8 * interval '1 ms' as at) as now;

-- name: dead_letters
-- Dead letters with their messages, oldest first.
-- Index: dead_died, handler_pkey, message_pkey.
select
    h.name as handler, d.lane, d.pos, m.kind, m.key, m.long_key, coalesce(d.body, m.body) as body,
    floor(extract(epoch from m.received_at) * 1000)::int8 as received_ms,
    floor(extract(epoch from d.died_at) * 1000)::int8 as died_ms,
    d.error, d.attempts::text as attempts
from "{schema}".dead d
join "{schema}".handler h on h.id = d.handler
join "{schema}".message m on m.lane = d.lane and m.pos = d.pos
where ($1::text is null or h.name = $1)
  and ($2::text is null or m.kind = $2)
  and ($3::int4 is null or (d.lane = $3 and d.pos = $4))
  and ($5::text is null or position(lower($5) in lower(d.error)) > 0)
  and ($6::int8 is null or d.died_at >= to_timestamp($6 / 1000.0))
  and ($7::int8 is null or d.died_at < to_timestamp($7 / 1000.0))
order by d.died_at, d.handler, d.lane, d.pos
limit $8::int8;

-- name: lock_dead
-- Waits for the lanes of the dead letters that are meant, by the conditions of act_on_dead: which ones, with the last letter there
-- and the number of all letters. By the time that the locks are had, others may have dealt with some of them.
-- Index: dead_pkey, handler_pkey, lane_pkey, message_pkey.
with meant as materialized (
    select d.handler, d.lane, d.pos
    from "{schema}".dead d
    join "{schema}".handler h on h.id = d.handler
    join "{schema}".message m on m.lane = d.lane and m.pos = d.pos
    where h.state <> 'removed' and ($1::text is null or h.name = $1)
      and ($2::text is null or m.kind = $2)
      and ($3::int4 is null or (d.lane = $3 and d.pos = $4))
      and ($5::text is null or position(lower($5) in lower(d.error)) > 0)
      and ($6::int8 is null or d.died_at >= to_timestamp($6 / 1000.0))
      and ($7::int8 is null or d.died_at < to_timestamp($7 / 1000.0))
      and ($9::int4 is null or (d.handler, d.lane, d.pos) > ($9, $10::int4, $11::int8))
    order by d.handler, d.lane, d.pos
    limit $8::int8
)
select
    l.handler, l.lane,
    (select max(m.pos) from meant m where m.handler = l.handler and m.lane = l.lane),
    (select count(*) from meant)
from "{schema}".lane l
where (l.handler, l.lane) in (select m.handler, m.lane from meant m)
order by l.handler, l.lane
for update of l;

-- name: act_on_dead
-- An operator's action on dead letters, with its entry in the audit. $8 is the action, $19 the one for those that are done, $9 the
-- operator, $10 a corrected body, $13 what the audit has behind the error. They run again ($20), except those whose handler has a
-- marker that says done; markers that say known and not done say done ($21), and missing ones are inserted, too ($22). The lanes $14, $15 of the handlers are locked. Those
-- up to handler $16, lane $17, position $18 were there before. The last one, and how many.
-- Index: dead_pkey, handler_pkey, marker_pkey, message_pkey.
with now as materialized (
    select clock_timestamp() + $11::int8 * interval '1 ms' as at
), chosen as materialized (
    select
        d.handler, d.lane, d.pos, h.name, h.origin, m.kind, m.key, m.long_key, m.received_at,
        exists (
            select from "{schema}".marker k
            where k.handler = h.origin and k.kind = m.kind and k.key = m.key and k.state = 'done'
        ) as is_done
    from "{schema}".dead d
    join "{schema}".handler h on h.id = d.handler
    join "{schema}".message m on m.lane = d.lane and m.pos = d.pos
    where h.state <> 'removed' and ($1::text is null or h.name = $1)
      and ($2::text is null or m.kind = $2)
      and ($3::int4 is null or (d.lane = $3 and d.pos = $4))
      and ($5::text is null or position(lower($5) in lower(d.error)) > 0)
      and ($6::int8 is null or d.died_at >= to_timestamp($6 / 1000.0))
      and ($7::int8 is null or d.died_at < to_timestamp($7 / 1000.0))
      and (d.handler, d.lane) in (select l.handler, l.lane from unnest($14::int4[], $15::int4[]) as l(handler, lane))
      and ($16::int4 is null or (d.handler, d.lane, d.pos) > ($16, $17::int4, $18::int8))
    order by d.handler, d.lane, d.pos
    limit $12::int8
    for update of d
), left_behind as (
    delete from "{schema}".dead d using chosen c
    where (d.handler, d.lane, d.pos) = (c.handler, c.lane, c.pos)
    returning d.*, c.name, c.origin, c.kind, c.key, c.long_key, c.received_at, c.is_done
), again as (
    insert into "{schema}".task (handler, lane, pos, order_by, failures, due_at, error, attempts, body)
    select b.handler, b.lane, b.pos, b.order_by, 0, now.at, b.error, b.attempts, coalesce($10::bytea, b.body)
    from left_behind b cross join now
    where $20 and not b.is_done
), marked as (
    insert into "{schema}".marker as m (handler, kind, key, long_key, state, received_at, processed_at)
    select b.origin, b.kind, b.key, b.long_key, 'done', b.received_at, now.at
    from left_behind b cross join now
    where $22 and b.key is not null
    on conflict (handler, kind, key) do update set state = 'done', processed_at = excluded.processed_at
    where m.state = 'spilled'
), discarded as (
    update "{schema}".marker k set state = 'done', processed_at = now.at
    from left_behind b cross join now
    where $21 and k.handler = b.origin and k.kind = b.kind and k.key = b.key and k.state = 'spilled'
), audited as (
    insert into "{schema}".audit (at, operator, action, handler, lane, pos, detail)
    select
        now.at, $9, case when b.is_done then $19 else $8 end,
        b.name, b.lane, b.pos, b.error || $13
    from left_behind b cross join now
)
select b.handler, b.lane, b.pos, count(*) over () from left_behind b order by b.handler desc, b.lane desc, b.pos desc limit 1;
