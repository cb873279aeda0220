-- Markers and results: which handler has done which key.

-- name: claim
-- Claims one unit: a row means fresh. The primary key is the referee. Several in one message claim several units; so the
-- parameters have no numbers. In order: handler, kind, key, long key, fingerprint, waited, offset of the clock.
-- Index: primary key of oncebox_marker.
insert into oncebox_marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
select ?, ?, ?, ?, ?, 'done', now.ms - ?, now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ? as ms) as now
where true
on conflict do nothing;

-- name: find_marker
-- Reads one marker with its result, by primary key.
-- Index: primary keys of oncebox_marker, oncebox_result.
select m.handler, m.kind, m.key, m.long_key, m.fingerprint, m.state, m.received_at, m.processed_at, r.body
from oncebox_marker m
left join oncebox_result r on (r.handler, r.kind, r.key) = (m.handler, m.kind, m.key)
where m.handler = ?1 and m.kind = ?2 and m.key = ?3;

-- name: find_markers
-- Reads the markers of several units with their results, by primary key; rows of units that have one. The units are a JSON
-- array of [handler, kind, key], keys in hex.
-- Index: primary keys of oncebox_marker, oncebox_result.
select
    m.handler, m.kind, m.key, m.long_key, m.fingerprint, m.state, m.received_at, m.processed_at, r.body,
    unit.key as n
from json_each(?1) as unit
cross join oncebox_marker m
    on m.handler = unit.value ->> 0 and m.kind = unit.value ->> 1 and m.key = unhex(unit.value ->> 2)
left join oncebox_result r on (r.handler, r.kind, r.key) = (m.handler, m.kind, m.key);

-- name: unclaim
-- Takes back the marker of a unit whose handler failed.
-- Index: primary key of oncebox_marker.
delete from oncebox_marker where handler = ?1 and kind = ?2 and key = ?3;

-- name: record_results
-- Keeps a handler's result beside its marker; of several, the newest.
-- Index: primary key of oncebox_result.
insert into oncebox_result (handler, kind, key, body) values (?1, ?2, ?3, ?4)
on conflict (handler, kind, key) do update set body = excluded.body;

-- name: settle_markers
-- Sets a marker to a state, now. Several in one message set several; so the parameters have no numbers. In order: state,
-- offset of the clock, handler, kind, key.
-- Index: primary key of oncebox_marker.
update oncebox_marker set state = ?, processed_at = cast(unixepoch('subsec') * 1000 as integer) + ?
where handler = ? and kind = ? and key = ?;

-- name: mark_done
-- Sets the marker of a unit that was known and not done to done, now: handler, kind, key, offset of the clock.
-- Index: primary key of oncebox_marker.
update oncebox_marker set state = 'done', processed_at = cast(unixepoch('subsec') * 1000 as integer) + ?4
where handler = ?1 and kind = ?2 and key = ?3 and state = 'spilled';

-- name: mark_all_done
-- Marks all spilled messages of a handler, by its first name, as done.
-- Index: primary key of oncebox_marker.
update oncebox_marker set state = 'done', processed_at = cast(unixepoch('subsec') * 1000 as integer) + ?2
where handler = ?1 and state = 'spilled';

-- name: mark_spilled
-- Marks a unit as known and not done, unless it is known already: handler, kind, key, long key, fingerprint, waited, offset
-- of the clock.
-- Index: primary key of oncebox_marker.
insert into oncebox_marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
select ?1, ?2, ?3, ?4, ?5, 'spilled', now.ms - ?6, now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ?7 as ms) as now
where true
on conflict do nothing;

-- name: import_accepted
-- Marks a key as accepted elsewhere: it has no place in the log. Several in one message mark several; so the
-- parameters have no numbers. In order: kind, key, long key, offset of the clock.
-- Index: primary key of oncebox_marker.
insert into oncebox_marker (handler, kind, key, long_key, state, received_at, processed_at)
select '@accept', ?, ?, ?, 'accepted', now.ms, now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ? as ms) as now
where true
on conflict do nothing;

-- name: append_marker
-- Marks a key as accepted. The last line is repeated for more of them; so the parameters have no numbers. In
-- order: kind, key, long key, fingerprint, received, accepted, lane, position.
-- Index: primary key of oncebox_marker.
insert into oncebox_marker (
    handler, kind, key, long_key, fingerprint, state, received_at, processed_at, lane, pos
)
values ('@accept', ?, ?, ?, ?, 'accepted', ?, ?, ?, ?);

-- name: find_accepted
-- Which of these keys were accepted before, by primary key, and where. The keys are a JSON array of [kind,
-- key], keys in hex.
-- Index: primary key of oncebox_marker.
select wanted.key, m.lane, m.pos, m.fingerprint
from json_each(?1) as wanted
cross join oncebox_marker m
    on m.handler = '@accept' and m.kind = wanted.value ->> 0 and m.key = unhex(wanted.value ->> 1);

-- name: backfill_markers
-- Marks for a handler what it took from the log so far: the keys that were accepted of its kinds, except those that still
-- wait. One that was accepted elsewhere has no place, and is done.
-- Index: primary keys of oncebox_dead, oncebox_handler, oncebox_marker, oncebox_progress, oncebox_replay, oncebox_task.
insert into oncebox_marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
select
    s.origin, s.kind, s.key, s.long_key, s.fingerprint,
    case when s.is_unfinished then 'spilled' else 'done' end,
    s.received_at, cast(unixepoch('subsec') * 1000 as integer) + ?2
from (
    select
        h.origin, a.kind, a.key, a.long_key, a.fingerprint, a.received_at, a.pos,
        exists (select 1 from oncebox_task t where t.handler = h.id and t.lane = a.lane and t.pos = a.pos)
        or exists (select 1 from oncebox_dead d where d.handler = h.id and d.lane = a.lane and d.pos = a.pos)
        as is_unfinished,
        -- What is gone over again was passed before.
        (
            select max(p.pos, coalesce(r.until, 0)) from oncebox_progress p
            left join oncebox_replay r on r.handler = p.handler and r.lane = p.lane and r.epoch = p.epoch
            where p.handler = h.id and p.lane = a.lane
            order by p.epoch desc, p.pos desc limit 1
        ) as reached
    from oncebox_handler h
    cross join json_each(h.kinds) k
    cross join oncebox_marker a on a.handler = '@accept' and a.kind = k.value
    where h.id = ?1
) as s
where s.pos is null or s.is_unfinished or s.pos <= s.reached
on conflict do nothing;

-- name: sweep
-- Deletes a bounded batch of old done markers, oldest first, along oncebox_marker_processed.
-- Index: primary key of oncebox_marker; oncebox_marker_processed.
delete from oncebox_marker
where (handler, kind, key) in (
    select handler, kind, key from oncebox_marker
    where state = 'done' and processed_at < ?1
    order by processed_at
    limit ?2
)
returning handler, kind, key;

-- name: sweep_result
-- Deletes the result of a swept marker, by primary key.
-- Index: primary key of oncebox_result.
delete from oncebox_result where handler = ?1 and kind = ?2 and key = ?3;

-- name: sweep_accepted
-- Deletes a bounded batch of old accept markers whose messages are pruned, oldest first, along
-- oncebox_marker_accepted.
-- Index: primary keys of oncebox_marker, oncebox_message; oncebox_marker_accepted.
delete from oncebox_marker
where (handler, kind, key) in (
    select a.handler, a.kind, a.key from oncebox_marker a
    where a.state = 'accepted' and a.processed_at < ?1
      and not exists (select 1 from oncebox_message m where m.lane = a.lane and m.pos = a.pos)
    order by a.processed_at
    limit ?2
);
