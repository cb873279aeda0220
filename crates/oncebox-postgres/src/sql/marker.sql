-- Markers and results: which handler has done which key.

-- name: claim
-- Claims the units of a batch, sorted so that two batches never deadlock; the primary key is the referee. The lock time-out
-- holds for this statement only; the handler's limits are set behind it, in the same round trip. From here to the guard
-- nothing commits: see the trigger marker_guarded.
--
-- Every claim also takes an advisory lock, if it can. One busy key must not stall a batch: units whose lock another
-- transaction holds are left out, and come back as busy. The fresh ones are listed only where not all are.
-- Index: marker_pkey.
with armed as materialized (
    select
        current_setting('lock_timeout') as lock_timeout_before,
        set_config('lock_timeout', $8, true),
        set_config('oncebox.guarded', 'on', true)
), unit as materialized (
    select
        u.kind, u.key, u.long_key, u.fingerprint, u.waited_ms, u.n,
        pg_try_advisory_xact_lock(u.lock_id) as free
    from unnest($2::text[], $3::bytea[], $4::bytea[], $5::int8[], $6::int8[], $11::int8[])
        with ordinality as u(kind, key, long_key, fingerprint, waited_ms, lock_id, n)
), fresh as (
    insert into "{schema}".marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
    select
        $1, u.kind, u.key, u.long_key, u.fingerprint, 'done',
        clock_timestamp() + ($7::int8 - u.waited_ms) * interval '1 ms',
        clock_timestamp() + $7::int8 * interval '1 ms'
    from armed cross join unit u
    where u.free
    order by u.kind collate "C", u.key
    on conflict do nothing
    returning kind, key
)
select
    case
        when (select count(*) from fresh) < cardinality($3::bytea[])
        then array(select u.n from unit u join fresh f on (u.kind, u.key) = (f.kind, f.key))
    end as fresh,
    array(select u.n from unit u where not u.free) as busy,
    pg_current_xact_id()::text as transaction_id,
    pg_backend_pid() as backend,
    set_config('lock_timeout', coalesce($12, (select lock_timeout_before from armed)), true),
    set_config('statement_timeout', $9, true),
    set_config('idle_in_transaction_session_timeout', $10, true);

-- name: claim_one
-- Claims one unit, and waits for the transaction that holds its marker; otherwise as a batch is claimed. The advisory lock, if it can be
-- had, tells batches that this key is busy.
-- Index: marker_pkey.
with armed as materialized (
    select
        current_setting('lock_timeout') as lock_timeout_before,
        set_config('lock_timeout', $8, true),
        set_config('oncebox.guarded', 'on', true),
        pg_try_advisory_xact_lock($11)
), fresh as (
    insert into "{schema}".marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
    select
        $1, $2, $3, $4, $5, 'done',
        clock_timestamp() + ($7::int8 - $6::int8) * interval '1 ms',
        clock_timestamp() + $7::int8 * interval '1 ms'
    from armed
    on conflict do nothing
    returning key
)
select
    exists (select from fresh) as fresh,
    pg_current_xact_id()::text as transaction_id,
    pg_backend_pid() as backend,
    set_config('lock_timeout', coalesce($12, (select lock_timeout_before from armed)), true),
    set_config('statement_timeout', $9, true),
    set_config('idle_in_transaction_session_timeout', $10, true);

-- name: claim_in
-- Claims one unit in a transaction that the caller owns: a row means fresh. The primary key is the referee.
-- Index: marker_pkey.
insert into "{schema}".marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
values (
    $1, $2, $3, $4, $5, 'done',
    clock_timestamp() + ($7::int8 - $6::int8) * interval '1 ms', clock_timestamp() + $7::int8 * interval '1 ms'
)
on conflict do nothing;

-- name: find_marker
-- Reads one marker with its result, by primary key.
-- Index: marker_pkey, result_pkey.
select
    m.handler, m.kind, m.key, m.long_key, m.fingerprint, m.state,
    floor(extract(epoch from m.received_at) * 1000)::int8 as received_ms,
    floor(extract(epoch from m.processed_at) * 1000)::int8 as processed_ms,
    r.body
from "{schema}".marker m
left join "{schema}".result r on (r.handler, r.kind, r.key) = (m.handler, m.kind, m.key)
where m.handler = $1 and m.kind = $2 and m.key = $3;

-- name: find_markers
-- Reads the markers of several units with their results, by primary key; rows of units that have one.
-- Index: marker_pkey, result_pkey.
select
    u.n, m.handler, m.kind, m.key, m.long_key, m.fingerprint, m.state,
    floor(extract(epoch from m.received_at) * 1000)::int8 as received_ms,
    floor(extract(epoch from m.processed_at) * 1000)::int8 as processed_ms,
    (
        select r.body from "{schema}".result r
        where r.handler = m.handler and r.kind = m.kind and r.key = m.key
    ) as body
from unnest($1::text[], $2::text[], $3::bytea[]) with ordinality as u(handler, kind, key, n)
cross join lateral (
    select * from "{schema}".marker m
    where m.handler = u.handler and m.kind = u.kind and m.key = u.key
    limit 1
) as m;

-- name: unclaim
-- Deletes the marker that this transaction has inserted, of a unit whose handler failed.
-- Index: marker_pkey.
delete from "{schema}".marker where handler = $1 and kind = $2 and key = $3;

-- name: unclaim_many
-- Deletes markers that this transaction has inserted, of messages that did not run.
-- Index: marker_pkey.
delete from "{schema}".marker m
using unnest($1::text[], $2::text[], $3::bytea[]) as v(handler, kind, key)
where (m.handler, m.kind, m.key) = (v.handler, v.kind, v.key);

-- name: record_results
-- Keeps handlers' results beside their markers; the newest counts, where a handler ran again on purpose.
-- Index: result_pkey.
insert into "{schema}".result (handler, kind, key, body)
select * from unnest($1::text[], $2::text[], $3::bytea[], $4::bytea[])
on conflict (handler, kind, key) do update set body = excluded.body;

-- name: settle_markers
-- Sets markers that are there to a state.
-- Index: marker_pkey.
update "{schema}".marker m
set state = $4, processed_at = clock_timestamp() + $5::int8 * interval '1 ms'
from unnest($1::text[], $2::text[], $3::bytea[]) as v(handler, kind, key)
where (m.handler, m.kind, m.key) = (v.handler, v.kind, v.key);

-- name: import_processed
-- Inserts markers for messages that were handled elsewhere, sorted as every claim.
-- Index: marker_pkey.
insert into "{schema}".marker (handler, kind, key, long_key, state, received_at, processed_at)
select $1, $2, k.key, k.long_key, 'done', now.at, now.at
from unnest($3::bytea[], $4::bytea[]) as k(key, long_key)
cross join (select clock_timestamp() + $5::int8 * interval '1 ms' as at) as now
order by k.key
on conflict do nothing;

-- name: import_accepted
-- Accept markers for messages that were accepted elsewhere, sorted as every claim.
-- Index: marker_pkey.
insert into "{schema}".marker (handler, kind, key, long_key, state, received_at, processed_at)
select '@accept', $1, k.key, k.long_key, 'accepted', now.at, now.at
from unnest($2::bytea[], $3::bytea[]) as k(key, long_key)
cross join (select clock_timestamp() + $4::int8 * interval '1 ms' as at) as now
order by k.key
on conflict do nothing;

-- name: backfill_markers
-- What a handler has passed in the log gets its own markers, so that copies that come inline are known: done, or known and not
-- done where there is a task or a dead letter. What still waits gets none.
-- Index: dead_pkey, handler_pkey, marker_pkey, progress_pkey, replay_pkey, task_pkey.
insert into "{schema}".marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
select
    h.origin, a.kind, a.key, a.long_key, a.fingerprint,
    case when t.pos is not null or d.pos is not null then 'spilled' else 'done' end,
    a.received_at, clock_timestamp() + $2::int8 * interval '1 ms'
from "{schema}".handler h
join "{schema}".marker a on a.handler = '@accept' and a.kind = any (h.kinds)
left join lateral (
    select p.epoch, p.pos from "{schema}".progress p
    where p.handler = h.id and p.lane = a.lane
    order by p.epoch desc, p.pos desc limit 1
) as p on true
-- What is gone over again was passed before.
left join "{schema}".replay r on r.handler = h.id and r.lane = a.lane and r.epoch = p.epoch
left join "{schema}".task t on (t.handler, t.lane, t.pos) = (h.id, a.lane, a.pos)
left join "{schema}".dead d on (d.handler, d.lane, d.pos) = (h.id, a.lane, a.pos)
where h.id = $1 and (a.pos is null or a.pos <= greatest(p.pos, r.until))
order by a.kind collate "C", a.key
on conflict do nothing;

-- name: sweep
-- Deletes a bounded batch of old done markers with their results, oldest first, along marker_processed. Rows that
-- another sweep has locked are left to it.
-- Index: marker_processed, result_pkey.
with due as materialized (
    select ctid from "{schema}".marker
    where state = 'done' and processed_at < to_timestamp($1::int8 / 1000.0)
    order by processed_at
    limit $2::int8
    for update skip locked
), swept as (
    delete from "{schema}".marker where ctid = any (array(select ctid from due))
    returning handler, kind, key
), results as (
    delete from "{schema}".result r using swept s
    where (r.handler, r.kind, r.key) = (s.handler, s.kind, s.key)
)
select count(*) from swept;

-- name: sweep_accepted
-- Deletes a bounded batch of old accept markers whose messages are gone, along marker_accepted.
-- Index: marker_accepted, message_pkey.
with due as materialized (
    select m.ctid from "{schema}".marker m
    where m.state = 'accepted' and m.processed_at < to_timestamp($1::int8 / 1000.0)
      and not exists (select from "{schema}".message g where g.lane = m.lane and g.pos = m.pos)
    order by m.processed_at
    limit $2::int8
    for update skip locked
)
delete from "{schema}".marker where ctid = any (array(select ctid from due));
