-- Dead letters, and what operators do with them.

-- name: write_dead_letters
-- Makes a message a dead letter of one handler. Several statements in one message write several; so the parameters have
-- no numbers. In order: offset of the clock, handler, lane, position, ordering key, failures, error, attempts
-- before, body.
-- Index: primary key of oncebox_dead.
with one as materialized (
    select
        cast(unixepoch('subsec') * 1000 as integer) + ? as now, ? as handler, ? as lane, ? as pos,
        ? as order_by, ? as failures, ? as error, coalesce(?, '[]') as attempts, ? as body
)
insert into oncebox_dead (handler, lane, pos, order_by, error, attempts, body, died_at)
select
    handler, lane, pos, order_by, coalesce(error, ''),
    case when error is null then attempts
        else json_insert(attempts, '$[#]', json_object('attempt', failures, 'at', now, 'error', error))
    end,
    body, now
from one where true
on conflict (handler, lane, pos) do update set
    order_by = excluded.order_by, error = excluded.error, attempts = excluded.attempts, body = excluded.body,
    died_at = excluded.died_at;

-- name: dead_letter_task
-- Makes a task that is still under its fence a dead letter: handler, lane, position, fence, failures, error, offset of the
-- clock, its failed attempts with room for this one. The task is still to be removed.
-- Index: primary key of oncebox_task.
insert into oncebox_dead (handler, lane, pos, order_by, error, attempts, body, died_at)
select
    t.handler, t.lane, t.pos, t.order_by, ?6,
    json_insert(?8, '$[#]', json_object('attempt', ?5, 'at', now.ms, 'error', ?6)),
    t.body, now.ms
from (select cast(unixepoch('subsec') * 1000 as integer) + ?7 as ms) as now
cross join oncebox_task t
where t.handler = ?1 and t.lane = ?2 and t.pos = ?3 and t.fence = ?4
on conflict (handler, lane, pos) do update set
    order_by = excluded.order_by, error = excluded.error, attempts = excluded.attempts, body = excluded.body,
    died_at = excluded.died_at;

-- name: dead_letters
-- Dead letters, the oldest first. A condition that is null does not count: handler, kind, lane, position,
-- text of the error, died at or after, died before.
-- Index: primary keys of oncebox_handler, oncebox_message; oncebox_dead_died.
select
    h.name, d.lane, d.pos, m.kind, m.key, m.long_key, coalesce(d.body, m.body),
    m.received_at, d.died_at, d.error, d.attempts
from oncebox_dead d
cross join oncebox_handler h on h.id = d.handler
cross join oncebox_message m on m.lane = d.lane and m.pos = d.pos
where (?1 is null or h.name = ?1)
  and (?2 is null or m.kind = ?2)
  and (?3 is null or d.lane = ?3)
  and (?4 is null or d.pos = ?4)
  and (?5 is null or instr(lower(d.error), lower(?5)) > 0)
  and (?6 is null or d.died_at >= ?6)
  and (?7 is null or d.died_at < ?7)
order by d.died_at, d.handler, d.lane, d.pos
limit ?8;

-- name: choose_dead
-- Chooses the dead letters of an action, by the conditions of dead_letters, after a handler (?10), lane and position: a JSON array
-- of [handler, lane, position, done]. One that is to run again (?9) is done if its handler has a marker that
-- says so.
-- Index: primary keys of oncebox_dead, oncebox_handler, oncebox_marker, oncebox_message.
select json_group_array(json_array(c.handler, c.lane, c.pos, c.is_done))
from (
    select d.handler, d.lane, d.pos, ?9 and exists (
        select 1 from oncebox_marker k
        where k.handler = h.origin and k.kind = m.kind and k.key = m.key and k.state = 'done'
    ) as is_done
    from oncebox_dead d
    cross join oncebox_handler h on h.id = d.handler
    cross join oncebox_message m on m.lane = d.lane and m.pos = d.pos
    where (?1 is null or h.name = ?1)
      and (?2 is null or m.kind = ?2)
      and (?3 is null or d.lane = ?3)
      and (?4 is null or d.pos = ?4)
      and (?5 is null or instr(lower(d.error), lower(?5)) > 0)
      and (?6 is null or d.died_at >= ?6)
      and (?7 is null or d.died_at < ?7)
      and (?10 is null or (d.handler, d.lane, d.pos) > (?10, ?11, ?12))
    order by d.handler, d.lane, d.pos
    limit ?8
) as c;

-- name: retry_dead
-- Makes the chosen dead letters tasks again that are due now, except those that are done. A corrected body
-- (?2) takes the place of the one before.
-- Index: primary key of oncebox_dead.
insert into oncebox_task (handler, lane, pos, order_by, failures, due_at, set_at, error, attempts, body)
select
    d.handler, d.lane, d.pos, d.order_by, 0, now.ms, now.ms, d.error, d.attempts, coalesce(?2, d.body)
from json_each(?1) as chosen
cross join (select cast(unixepoch('subsec') * 1000 as integer) + ?3 as ms) as now
cross join oncebox_dead d
    on d.handler = chosen.value ->> 0 and d.lane = chosen.value ->> 1 and d.pos = chosen.value ->> 2
where not chosen.value ->> 3
on conflict (handler, lane, pos) do update set
    failures = excluded.failures, due_at = excluded.due_at, set_at = excluded.set_at, owner = null, fence = null,
    error = excluded.error, attempts = excluded.attempts, body = excluded.body, scheduled = 0, crashes = 0;

-- name: resolve_dead
-- Inserts the markers of the chosen dead letters that have a key; those that were not done are now.
-- Index: primary keys of oncebox_handler, oncebox_message.
insert into oncebox_marker (handler, kind, key, long_key, state, received_at, processed_at)
select
    h.origin, m.kind, m.key, m.long_key, 'done', m.received_at, cast(unixepoch('subsec') * 1000 as integer) + ?2
from json_each(?1) as chosen
cross join oncebox_handler h on h.id = chosen.value ->> 0
cross join oncebox_message m on m.lane = chosen.value ->> 1 and m.pos = chosen.value ->> 2
where m.key is not null
on conflict (handler, kind, key) do update set state = 'done', processed_at = excluded.processed_at
where state = 'spilled';

-- name: mark_dead_done
-- Counts the chosen dead letters as done, where their markers say that they are not.
-- Index: primary keys of oncebox_handler, oncebox_marker, oncebox_message.
update oncebox_marker set state = 'done', processed_at = cast(unixepoch('subsec') * 1000 as integer) + ?2
where state = 'spilled' and (handler, kind, key) in (
    select h.origin, m.kind, m.key
    from json_each(?1) as chosen
    cross join oncebox_handler h on h.id = chosen.value ->> 0
    cross join oncebox_message m on m.lane = chosen.value ->> 1 and m.pos = chosen.value ->> 2
);

-- name: remove_dead
-- Removes the chosen dead letters.
-- Index: primary key of oncebox_dead.
delete from oncebox_dead
where (handler, lane, pos) in (select value ->> 0, value ->> 1, value ->> 2 from json_each(?1));

-- name: drop_dead
-- Drops all dead letters of a handler.
-- Index: primary key of oncebox_dead.
delete from oncebox_dead where handler = ?1;
