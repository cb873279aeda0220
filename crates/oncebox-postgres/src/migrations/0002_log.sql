-- The log: messages in lanes, the progress of handlers, tasks and dead letters.

-- Accept is a claim too, by the reserved handler '@accept'; its marker points to the message.
alter table "{schema}".marker drop constraint marker_state_check;
alter table "{schema}".marker add constraint marker_state_check check (state in ('done', 'spilled', 'accepted'));
alter table "{schema}".marker add column lane integer;
alter table "{schema}".marker add column pos bigint;
create index marker_accepted on "{schema}".marker (processed_at) where state = 'accepted';

-- No handler runs in the transaction of an accept.
drop trigger marker_guarded on "{schema}".marker;
create constraint trigger marker_guarded
after insert on "{schema}".marker
deferrable initially deferred
for each row when (new.state <> 'accepted' and current_setting('oncebox.guarded', true) = 'on')
execute function "{schema}".refuse_commit();

-- What is fixed when the log is made; one row.
create table "{schema}".layout (
    only_one boolean primary key default true check (only_one),
    lanes integer not null check (lanes between 1 and 1024),
    hash text not null                   -- how an ordering key becomes a lane
);

-- Every handler that ever was. Names are never given twice.
create table "{schema}".handler (
    id integer generated always as identity primary key,
    name text collate "C" not null unique,
    origin text collate "C" not null,    -- the first name: markers and effect ids are made with it
    kinds text[] not null,
    mode text not null check (mode in ('inline', 'spill', 'stored', 'mixed', 'relay')),
    ordered text check (ordered in ('hold', 'skip')),  -- what a dead letter means for those behind it; null: no order
    state text not null check (state in ('active', 'paused', 'removed', 'renamed')),
    keep interval,                       -- of a relay: how long messages stay for a replay
    renamed_to integer,                  -- whose name this was, where it is only that
    registered_at timestamptz not null default clock_timestamp()
);

-- Every kind of which a message was accepted.
create table "{schema}".kind (
    kind text collate "C" primary key,
    first_seen_at timestamptz not null
);

-- The messages. Appended under the lane's lock, so that positions have no gaps and appear in their order; never updated.
create table "{schema}".message (
    lane integer not null,
    pos bigint not null,
    kind text collate "C" not null,
    key bytea,                           -- null: accepted without dedup
    long_key bytea,
    order_by bytea,
    target integer,                      -- only for this handler; null for all of its kind
    message_id uuid,                     -- of a published message; null: accepted
    headers text,                        -- JSON: a list of [name, value]
    body bytea not null,
    occurred_at timestamptz,
    due_at timestamptz,
    received_at timestamptz not null,
    primary key (lane, pos)
);

-- Rows that exist to be locked: a handler at work in a lane. Handler 0 appends, handler -1 is upkeep.
create table "{schema}".lane (
    handler integer not null,
    lane integer not null,
    primary key (handler, lane)
);

-- How far a handler has come in a lane: the highest (epoch, pos) counts. Appended, never updated.
create table "{schema}".progress (
    handler integer not null,
    lane integer not null,
    epoch integer not null,
    pos bigint not null,
    at timestamptz not null default clock_timestamp(),
    primary key (handler, lane, epoch, pos)
);

-- Tasks: messages of one handler that wait for another attempt, or for their time.
create table "{schema}".task (
    handler integer not null,
    lane integer not null,
    pos bigint not null,
    order_by bytea,
    failures integer not null,
    due_at timestamptz not null,
    scheduled boolean not null default false,  -- waits for its sender's time, and holds nobody back before
    crashes integer not null default 0,  -- processes that died while they ran it
    owner uuid,                          -- the process that runs it outside of a transaction
    fence bigint,
    error text,                          -- the last one
    attempts jsonb not null default '[]',
    body bytea,                          -- an operator's correction
    primary key (handler, lane, pos)
);
create index task_due on "{schema}".task (handler, lane, due_at, pos) where owner is null;
create index task_message on "{schema}".task (lane, pos);
create index task_order on "{schema}".task (handler, lane, order_by, pos) where order_by is not null;
create index task_owner on "{schema}".task (owner) where owner is not null;

-- Who may end a task that runs outside of a transaction.
create sequence "{schema}".fence;

-- Tasks that used up their attempts. They leave by an operator's action only.
create table "{schema}".dead (
    handler integer not null,
    lane integer not null,
    pos bigint not null,
    order_by bytea,
    error text not null,
    attempts jsonb not null,
    body bytea,
    died_at timestamptz not null,
    primary key (handler, lane, pos)
);
create index dead_died on "{schema}".dead (died_at);
create index dead_message on "{schema}".dead (lane, pos);
create index dead_order on "{schema}".dead (handler, lane, order_by, pos) where order_by is not null;

-- What a handler goes over again: the messages of this epoch behind `after` and up to `until`.
create table "{schema}".replay (
    handler integer not null,
    lane integer not null,
    epoch integer not null,
    after bigint not null,
    until bigint not null,
    primary key (handler, lane, epoch)
);

-- The processes at work. One that is silent for longer than its lease has died.
create table "{schema}".process (
    id uuid primary key,
    name text not null,
    handlers integer[] not null,
    lease interval not null,
    in_flight integer not null,
    beats bigint not null default 0,
    heartbeat timestamptz not null,
    started_at timestamptz not null
);

-- Where a process has died: messages run one by one, each with a note before it.
create table "{schema}".careful (
    handler integer not null,
    lane integer not null,
    messages_left integer not null,
    primary key (handler, lane)
);
create table "{schema}".attempting (
    handler integer not null,
    lane integer not null,
    pos bigint not null,
    crashes integer not null,
    process uuid not null,
    primary key (handler, lane, pos)
);

-- What operators did.
create table "{schema}".audit (
    id bigint generated always as identity primary key,
    at timestamptz not null,
    operator text not null,
    action text not null,
    handler text not null,
    lane integer,
    pos bigint,
    detail text
);

-- Claims by a handler's name are made with its first name, as its own are.
create or replace function "{schema}".claim(handler text, kind text, key bytea) returns boolean
language plpgsql
as $$
begin
    if coalesce($1, '') = '' or coalesce($2, '') = '' or coalesce(octet_length($3), 0) = 0 then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = 'oncebox: handler, kind and key must not be empty: an empty key identifies nothing';
    end if;
    if octet_length($1) > 200 or octet_length($2) > 200 or octet_length($3) > 65536 then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = 'oncebox: handler and kind may have 200 bytes, the key 65536';
    end if;
    insert into "{schema}".marker (handler, kind, key, long_key, state, received_at, processed_at)
    values (
        coalesce((select h.origin from "{schema}".handler h where h.name = $1), $1),
        $2, "{schema}".stored_key($3), case when octet_length($3) > 512 then $3 end, 'done',
        clock_timestamp(), clock_timestamp()
    )
    on conflict do nothing;
    return found;
end
$$;

-- As with markers: as long as handlers run, nothing commits. Every batch begins with one of these.
create constraint trigger progress_guarded
after insert on "{schema}".progress
deferrable initially deferred
for each row when (current_setting('oncebox.guarded', true) = 'on')
execute function "{schema}".refuse_commit();

create constraint trigger task_guarded
after delete on "{schema}".task
deferrable initially deferred
for each row when (current_setting('oncebox.guarded', true) = 'on')
execute function "{schema}".refuse_commit();

-- Appends messages to one lane, in one round trip and its own transaction. First the lock, then, by a statement that
-- begins later and sees everything before it, the keys and the positions. The plan must be the same for a table of any size.
-- A key that is being accepted elsewhere at the same time is met by the marker's primary key: nothing is kept then, and the
-- caller tries again, when it is known. The caller knows which kinds it has never noted.
create function "{schema}".append(
    any_lane boolean, preferred integer, kinds text[], keys bytea[], long_keys bytea[], fingerprints bigint[],
    orders bytea[], headers text[], bodies bytea[], occurred_ms bigint[], due_ms bigint[], waited_ms bigint[],
    offset_ms bigint, new_kinds text[], message_ids uuid[]
) returns table (n bigint, is_known boolean, lane integer, pos bigint, fingerprint bigint)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    chosen integer;
    received timestamptz;
begin
    if any_lane then
        select l.lane into chosen from "{schema}".lane l
        where l.handler = 0
        order by l.lane < preferred, l.lane
        limit 1
        for update skip locked;
    end if;
    if chosen is null then
        select l.lane into chosen from "{schema}".lane l where l.handler = 0 and l.lane = preferred for update;
    end if;
    if chosen is null then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = 'oncebox: there is no such lane; start a stored inbox once, which makes the lanes';
    end if;
    received := clock_timestamp() + offset_ms * interval '1 ms';

    if new_kinds <> '{}' then
        insert into "{schema}".kind (kind, first_seen_at)
        select v.kind, received from unnest(new_kinds) as v(kind)
        order by v.kind
        on conflict do nothing;
    end if;

    return query
    with v as materialized (
        select
            u.*, m.state is not null as is_known, m.lane as known_lane, m.pos as known_pos, m.fingerprint as known_as,
            head.pos + count(*) filter (where m.state is null) over (order by u.n rows unbounded preceding) as pos
        from unnest(
            kinds, keys, long_keys, fingerprints, orders, headers, bodies, occurred_ms, due_ms, waited_ms, message_ids
        ) with ordinality as u(
            kind, key, long_key, fingerprint, order_by, headers, body, occurred_ms, due_ms, waited_ms, message_id, n
        )
        left join lateral (
            select m.state, m.lane, m.pos, m.fingerprint from "{schema}".marker m
            where m.handler = '@accept' and m.kind = u.kind and m.key = u.key
            limit 1
        ) as m on true
        cross join (
            select coalesce((
                select m.pos from "{schema}".message m where m.lane = chosen order by m.pos desc limit 1
            ), 0) as pos
        ) as head
    ), marked as (
        insert into "{schema}".marker (
            handler, kind, key, long_key, fingerprint, state, received_at, processed_at, lane, pos
        )
        select
            '@accept', v.kind, v.key, v.long_key, v.fingerprint, 'accepted',
            received - v.waited_ms * interval '1 ms', received, chosen, v.pos
        from v
        where not v.is_known and v.key is not null
        order by v.kind collate "C", v.key
    ), appended as (
        insert into "{schema}".message (
            lane, pos, kind, key, long_key, order_by, headers, body, occurred_at, due_at, received_at, message_id
        )
        select
            chosen, v.pos, v.kind, v.key, v.long_key, v.order_by, v.headers, v.body,
            to_timestamp(v.occurred_ms / 1000.0), to_timestamp(v.due_ms / 1000.0),
            received - v.waited_ms * interval '1 ms', v.message_id
        from v
        where not v.is_known
        order by v.pos
    )
    select
        v.n, v.is_known, case when v.is_known then v.known_lane else chosen end,
        case when v.is_known then v.known_pos else v.pos end, v.known_as
    from v;
end
$$;

-- Whether an earlier message of its ordering key holds a message back: a task, unless it waits for its sender's time; a dead
-- letter, where those hold.
create function "{schema}".is_held(
    taker integer, taken integer, ordering bytea, before bigint, now_at timestamptz, dead_hold boolean
) returns boolean
language sql stable
as $$
    select exists (
        select from "{schema}".task t
        where t.handler = taker and t.lane = taken and t.order_by = ordering and t.pos < before
          and not (t.scheduled and t.due_at > now_at)
    ) or (dead_hold and exists (
        select from "{schema}".dead d
        where d.handler = taker and d.lane = taken and d.order_by = ordering and d.pos < before
    ))
$$;

-- The first task of every ordering key in a lane that is not waiting for its sender's time, key by key along the index.
create function "{schema}".task_heads(taker integer, taken integer, now_at timestamptz)
returns table (order_by bytea, pos bigint, due_at timestamptz, owner uuid)
language sql stable
as $$
    with recursive key as (
        (
            select t.order_by from "{schema}".task t
            where t.handler = taker and t.lane = taken and t.order_by is not null
            order by t.order_by limit 1
        )
        union all
        select (
            select t.order_by from "{schema}".task t
            where t.handler = taker and t.lane = taken and t.order_by > key.order_by
            order by t.order_by limit 1
        )
        from key where key.order_by is not null
    )
    select key.order_by, head.pos, head.due_at, head.owner
    from key
    cross join lateral (
        select t.pos, t.due_at, t.owner from "{schema}".task t
        where t.handler = taker and t.lane = taken and t.order_by = key.order_by
          and not (t.scheduled and t.due_at > now_at)
        order by t.pos limit 1
    ) as head
    where key.order_by is not null
$$;

-- Takes a lane for a handler: first the lock, then, by later statements, the progress and the messages behind it, up to the
-- position that was looked at. No row means that another transaction has the lane; a row without a position that there is no
-- message for this handler. The progress to the first message is appended here, so that the trigger above guards the
-- transaction.
create function "{schema}".take(
    taker integer, taken integer, kinds text[], mode text, ordered text, max_messages integer, max_positions bigint,
    max_bytes bigint, max_tasks integer, offset_ms bigint, statement_limit text, idle_limit text
) returns table (
    transaction_id text, backend integer, epoch integer, since bigint, looked bigint, head bigint,
    pos bigint, kind text, key bytea, long_key bytea, order_by bytea, headers text, body bytea,
    occurred_ms bigint, due_ms bigint, due_in_ms bigint, waited_ms bigint, held boolean, replay boolean
)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    my_epoch integer;
    my_pos bigint;
    newest bigint;
    last_pos bigint;
    first_pos bigint;
    dead_head text;
    replay_after bigint;
    replay_until bigint;
    now_at timestamptz := clock_timestamp() + offset_ms * interval '1 ms';
begin
    perform from "{schema}".lane l where l.handler = taker and l.lane = taken for update skip locked;
    if not found then return; end if;
    -- A straggler that knows the handler as it was before must not pass over what it does not take, nor work by the old rules.
    select h.ordered into dead_head from "{schema}".handler h
    where h.id = taker and h.state = 'active' and h.kinds = take.kinds and h.mode = take.mode
      and h.ordered is not distinct from take.ordered;
    if not found then return; end if;
    select p.epoch, p.pos into my_epoch, my_pos from "{schema}".progress p
    where p.handler = taker and p.lane = taken
    order by p.epoch desc, p.pos desc
    limit 1;
    if not found then return; end if;
    if my_epoch > 0 then
        select r.after, r.until into replay_after, replay_until from "{schema}".replay r
        where r.handler = taker and r.lane = taken and r.epoch = my_epoch;
    end if;
    select m.pos into newest from "{schema}".message m where m.lane = taken order by m.pos desc limit 1;
    newest := greatest(coalesce(newest, 0), my_pos);
    last_pos := least(newest, my_pos + max_positions);
    if max_tasks is not null and (
        select count(*) from (
            select from "{schema}".task t
            where t.handler = taker and t.lane = taken and (t.failures > 0 or t.owner is not null)
            limit max_tasks
        ) as open
    ) >= max_tasks then
        last_pos := my_pos;
    end if;
    perform
        set_config('oncebox.guarded', 'on', true),
        set_config('statement_timeout', statement_limit, true),
        set_config('idle_in_transaction_session_timeout', idle_limit, true);

    select m.pos into first_pos from "{schema}".message m
    where m.lane = taken and m.pos > my_pos and m.pos <= last_pos and m.target is null and m.kind = any (kinds)
    order by m.pos
    limit 1;
    transaction_id := pg_current_xact_id()::text;
    backend := pg_backend_pid();
    epoch := my_epoch;
    since := my_pos;
    looked := last_pos;
    head := newest;
    if first_pos is null then
        return next;
        return;
    end if;
    insert into "{schema}".progress (handler, lane, epoch, pos) values (taker, taken, my_epoch, first_pos);

    return query
    select
        transaction_id, backend, my_epoch, my_pos, last_pos, newest,
        m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body,
        (date_part('epoch', m.occurred_at) * 1000)::int8,
        (date_part('epoch', m.due_at) * 1000)::int8,
        greatest((date_part('epoch', m.due_at - now_at) * 1000)::int8, 0),
        greatest((date_part('epoch', now_at - m.received_at) * 1000)::int8, 0),
        case when dead_head is null or m.order_by is null then false
            else "{schema}".is_held(taker, taken, m.order_by, m.pos, now_at, dead_head = 'hold')
        end,
        coalesce(m.pos > replay_after and m.pos <= replay_until, false)
    from (
        select m.*, sum(octet_length(m.body)) over (
            order by m.pos rows between unbounded preceding and 1 preceding
        ) as bytes_before
        from (
            select m.* from "{schema}".message m
            where m.lane = taken and m.pos >= first_pos and m.pos <= last_pos
              and m.target is null and m.kind = any (kinds)
            order by m.pos
            limit max_messages
        ) as m
    ) as m
    where m.bytes_before is null or m.bytes_before < max_bytes;
end
$$;

-- Takes tasks that are due and not held back, out of the table: those that fail again are put back. Otherwise as take does.
create function "{schema}".take_tasks(
    taker integer, taken integer, kinds text[], mode text, ordered text, max_tasks integer, heads_only boolean,
    offset_ms bigint,
    statement_limit text, idle_limit text
) returns table (
    transaction_id text, backend integer,
    pos bigint, kind text, key bytea, long_key bytea, order_by bytea, headers text, body bytea,
    occurred_ms bigint, due_ms bigint, due_in_ms bigint, waited_ms bigint, failures integer, attempts text, edited boolean,
    replay boolean, crashes integer, spilled boolean, message_id uuid
)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_column
declare
    dead_head text;
    first_name text;
    keys bytea[];
    heads bigint[];
    each_key bigint;
    chosen bigint[];
    now_at timestamptz := clock_timestamp() + offset_ms * interval '1 ms';
begin
    perform from "{schema}".lane l where l.handler = taker and l.lane = taken for update skip locked;
    if not found then return; end if;
    select h.ordered, h.origin into dead_head, first_name from "{schema}".handler h
    where h.id = taker and h.state = 'active' and (h.kinds = take_tasks.kinds or h.mode = 'spill')
      and h.mode = take_tasks.mode and h.ordered is not distinct from take_tasks.ordered;
    if not found then return; end if;
    perform
        set_config('oncebox.guarded', 'on', true),
        set_config('statement_timeout', statement_limit, true),
        set_config('idle_in_transaction_session_timeout', idle_limit, true);

    if dead_head is null then
        chosen := array(
            select t.pos from "{schema}".task t
            where t.handler = taker and t.lane = taken and t.due_at <= now_at and t.owner is null
            order by t.due_at, t.pos
            limit max_tasks
        );
    else
        -- Heads, the longest due first, each with those that can follow it: as far as nothing that is not due, or dead, is in
        -- between. Keys share the room that there is, so that a long one keeps nobody waiting.
        select array_agg(h.order_by order by h.due_at, h.pos), array_agg(h.pos order by h.due_at, h.pos)
        into keys, heads
        from "{schema}".task_heads(taker, taken, now_at) h
        where h.due_at <= now_at and h.owner is null
          and not "{schema}".is_held(taker, taken, h.order_by, h.pos, now_at, dead_head = 'hold');
        each_key := case when heads_only then 1 else ceil(max_tasks::numeric / greatest(cardinality(heads), 1)) end;
        chosen := array(
            select f.pos
            from unnest(keys, heads) with ordinality as h(order_by, pos, n)
            cross join lateral (
                select min(s.pos) as pos from (
                    (
                        select t.pos from "{schema}".task t
                        where t.handler = taker and t.lane = taken and t.order_by = h.order_by and t.pos > h.pos
                          and (t.owner is not null or (t.due_at > now_at and not t.scheduled))
                        order by t.pos limit 1
                    )
                    union all
                    (
                        select d.pos from "{schema}".dead d
                        where d.handler = taker and d.lane = taken and d.order_by = h.order_by and dead_head = 'hold'
                        order by d.pos limit 1
                    )
                ) as s
            ) as stop
            cross join lateral (
                select t.pos from "{schema}".task t
                where t.handler = taker and t.lane = taken and t.order_by = h.order_by
                  and t.pos >= h.pos and (stop.pos is null or t.pos < stop.pos) and t.due_at <= now_at and t.owner is null
                order by t.pos
                limit each_key
            ) as f
            order by h.n, f.pos
            limit max_tasks
        );
        if cardinality(chosen) < max_tasks then
            chosen := chosen || array(
                select t.pos from "{schema}".task t
                where t.handler = taker and t.lane = taken and t.due_at <= now_at and t.owner is null
                  and t.order_by is null
                order by t.due_at, t.pos
                limit max_tasks - cardinality(chosen)
            );
        end if;
    end if;

    return query
    with taken_out as (
        delete from "{schema}".task t
        where t.handler = taker and t.lane = taken and t.pos = any (chosen)
        returning t.*
    )
    select
        pg_current_xact_id()::text, pg_backend_pid(),
        m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, coalesce(t.body, m.body),
        floor(extract(epoch from m.occurred_at) * 1000)::int8,
        floor(extract(epoch from m.due_at) * 1000)::int8,
        0::int8,
        greatest(floor(extract(epoch from now_at - m.received_at) * 1000)::int8, 0),
        t.failures, t.attempts::text, t.body is not null,
        m.target is null and exists (
            select from "{schema}".replay r
            where r.handler = taker and r.lane = taken and t.pos > r.after and t.pos <= r.until and r.epoch = (
                select p.epoch from "{schema}".progress p
                where p.handler = taker and p.lane = taken
                order by p.epoch desc limit 1
            )
        ),
        t.crashes,
        exists (
            select from "{schema}".marker k
            where k.handler = first_name and k.kind = m.kind and k.key = m.key and k.state = 'spilled'
        ),
        m.message_id
    from taken_out t
    join "{schema}".message m on m.lane = t.lane and m.pos = t.pos
    order by case when dead_head is null then t.due_at end, t.pos;
end
$$;

-- Spills a message for one handler that did not handle it inline: its marker, itself, and its task or dead letter. The
-- marker comes first: another copy may hold it for a while, and nobody is to wait for the lane meanwhile.
create function "{schema}".spill(
    target_handler integer, marker_handler text, kind text, key bytea, long_key bytea, fingerprint bigint,
    order_by bytea, headers text, body bytea, occurred_ms bigint, due_ms bigint, waited_ms bigint,
    any_lane boolean, preferred integer, failures integer, due_in_ms bigint, error text, is_dead boolean,
    offset_ms bigint, lock_limit text
) returns table (lane integer, pos bigint)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_variable
declare
    chosen integer;
    new_pos bigint;
    now_at timestamptz := clock_timestamp() + offset_ms * interval '1 ms';
    tries jsonb := case when error is null then '[]' else jsonb_build_array(jsonb_build_object(
        'attempt', failures, 'at', floor(extract(epoch from now_at) * 1000)::int8, 'error', error
    )) end;
begin
    perform set_config('lock_timeout', lock_limit, true);
    -- Those who remove handlers wait for this, or this for them.
    perform from "{schema}".handler h where h.id = target_handler and h.state <> 'removed' and h.mode <> 'inline' for share;
    if not found then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = 'oncebox: the handler was removed or is only inline by now; its messages cannot be spilled';
    end if;
    if marker_handler is not null then
        insert into "{schema}".marker as m (
            handler, kind, key, long_key, fingerprint, state, received_at, processed_at
        )
        values (
            marker_handler, kind, key, long_key, fingerprint, 'spilled', now_at - waited_ms * interval '1 ms', now_at
        )
        on conflict do nothing;
        if not found then return; end if;
    end if;
    perform set_config('lock_timeout', '0', true);
    if any_lane then
        select l.lane into chosen from "{schema}".lane l
        where l.handler = 0
        order by l.lane < preferred, l.lane
        limit 1
        for update skip locked;
    end if;
    if chosen is null then
        select l.lane into chosen from "{schema}".lane l where l.handler = 0 and l.lane = preferred for update;
    end if;
    select m.pos into new_pos from "{schema}".message m where m.lane = chosen order by m.pos desc limit 1;
    new_pos := coalesce(new_pos, 0) + 1;
    insert into "{schema}".message (
        lane, pos, kind, key, long_key, order_by, target, headers, body, occurred_at, due_at, received_at
    )
    values (
        chosen, new_pos, kind, key, long_key, order_by, target_handler, headers, body,
        to_timestamp(occurred_ms / 1000.0), to_timestamp(due_ms / 1000.0), now_at - waited_ms * interval '1 ms'
    );
    if is_dead then
        insert into "{schema}".dead (handler, lane, pos, order_by, error, attempts, died_at)
        values (target_handler, chosen, new_pos, order_by, coalesce(error, ''), tries, now_at);
    else
        insert into "{schema}".task (handler, lane, pos, order_by, failures, due_at, error, attempts)
        values (
            target_handler, chosen, new_pos, order_by, failures, now_at + due_in_ms * interval '1 ms', error, tries
        );
    end if;
    lane := chosen;
    pos := new_pos;
    return next;
end
$$;

-- The kinds of a relay as patterns for LIKE: a `*` stands for any text.
create function "{schema}".patterns(kinds text[]) returns text[]
language sql stable
as $$
    select string_to_array(
        replace(replace(replace(replace(array_to_string($1, chr(1)), '\', '\\'), '%', '\%'), '_', '\_'), '*', '%'), chr(1)
    )
$$;

-- Whether a handler or relay reads a message of the log. A relay reads published messages only.
create function "{schema}".reads(mode text, kinds text[], kind text, message_id uuid) returns boolean
language sql stable
as $$
    select case
        when $1 in ('stored', 'mixed') then $3 = any ($2)
        when $1 = 'relay' then $4 is not null and $3 like any ("{schema}".patterns($2))
        else false
    end
$$;

-- Deletes messages of one lane that no reader needs any more; without a time, those that relays read and no handler does. The upkeep
-- lock comes first: no handler is registered, replayed or removed meanwhile.
create function "{schema}".prune(
    pruned integer, behind bigint, max_positions integer, before timestamptz, offset_ms bigint
) returns table (deleted bigint, next bigint)
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off -- the handlers are few and scanned all the same, at a price that would have it compiled, for a second each time
as $$
#variable_conflict use_column
declare
    newest bigint;
    -- Without a time: as long as the first relay to let them go keeps them.
    until timestamptz := coalesce(before, (
        select max(clock_timestamp() + offset_ms * interval '1 ms' - h.keep) from "{schema}".handler h
        where h.mode = 'relay' and h.state in ('active', 'paused')
    ));
begin
    perform from "{schema}".lane l where l.handler = -1 and l.lane = pruned for update;
    select m.pos into newest from "{schema}".message m where m.lane = pruned order by m.pos desc limit 1;

    with looked as materialized (
        select m.pos, m.kind, m.target, m.message_id, m.received_at, coalesce(m.received_at < until, false) as is_old
        from "{schema}".message m
        where m.lane = pruned and m.pos > behind
        order by m.pos
        limit max_positions
    ), passed as materialized (
        select h.mode, h.kinds, coalesce(clock_timestamp() + offset_ms * interval '1 ms' - h.keep, 'infinity') as keep_from, coalesce((
            select p.pos from "{schema}".progress p
            where p.handler = h.id and p.lane = pruned
            order by p.epoch desc, p.pos desc limit 1
        ), 0) as pos
        from "{schema}".handler h
        where h.state in ('active', 'paused') and h.mode in ('stored', 'mixed', 'relay')
    ), gone as (
        delete from "{schema}".message m using looked l
        where m.lane = pruned and m.pos = l.pos and l.is_old and l.pos < newest
          and case when l.target is null then (
              select l.pos <= min(p.pos) and l.received_at < min(p.keep_from)
                  and not (before is null and bool_or(p.mode <> 'relay'))
              from passed p where "{schema}".reads(p.mode, p.kinds, l.kind, l.message_id)
          ) else before is not null end
          and not exists (select from "{schema}".task t where t.lane = pruned and t.pos = l.pos)
          and not exists (select from "{schema}".dead d where d.lane = pruned and d.pos = l.pos)
        returning 1
    )
    select
        (select count(*) from gone),
        (select max(l.pos) from looked l having count(*) = max_positions and bool_and(l.is_old))
    into deleted, next;

    -- Of the progress, only the newest matters; the rest tells when messages were done, for as long as these are kept.
    if next is null and before is not null then
        delete from "{schema}".progress p
        using "{schema}".handler h
        cross join lateral (
            select n.epoch, n.pos from "{schema}".progress n
            where n.handler = h.id and n.lane = pruned
            order by n.epoch desc, n.pos desc limit 1
        ) as newest
        where p.handler = h.id and p.lane = pruned and p.at < before
          and (p.epoch, p.pos) < (newest.epoch, newest.pos);
    end if;
    return next;
end
$$;

-- A body as JSON, where it is some.
create function "{schema}".as_json(body bytea) returns jsonb
language plpgsql immutable strict
as $$
begin
    return convert_from(body, 'UTF8')::jsonb;
exception when others then
    return null;
end
$$;

-- A key as text: as it is where it is UTF-8, else in hexadecimal.
create function "{schema}".as_text(key bytea) returns text
language plpgsql immutable strict
as $$
begin
    return convert_from(key, 'UTF8');
exception when others then
    return '0x' || encode(key, 'hex');
end
$$;

-- The log in the shape of an inbox table: one row for each message, processed when all its handlers are done.
create view "{schema}".inbox_message as
select
    "{schema}".as_text(coalesce(m.long_key, substring(m.key from 2))) as id,
    m.kind as type,
    "{schema}".as_json(m.body) as content,
    m.received_at as received_on_utc,
    case when s.handlers > 0 and s.handlers = s.done then s.last_done_at end as processed_on_utc,
    s.error,
    m.lane, m.pos
from "{schema}".message m
cross join lateral (
    select
        count(*) as handlers,
        count(*) filter (
            where t.pos is null and d.pos is null and (p.at is not null or m.target is not null)
        ) as done,
        coalesce(max(p.at), m.received_at) as last_done_at,
        max(coalesce(d.error, t.error)) as error
    from "{schema}".handler h
    left join lateral (
        select p.epoch from "{schema}".progress p
        where p.handler = h.id and p.lane = m.lane
        order by p.epoch desc limit 1
    ) as e on true
    left join lateral (
        select p.at from "{schema}".progress p
        where p.handler = h.id and p.lane = m.lane and p.epoch = e.epoch and p.pos >= m.pos
        order by p.pos limit 1
    ) as p on true
    left join "{schema}".task t on (t.handler, t.lane, t.pos) = (h.id, m.lane, m.pos)
    left join "{schema}".dead d on (d.handler, d.lane, d.pos) = (h.id, m.lane, m.pos)
    where h.state in ('active', 'paused') and case when m.target is null
        then "{schema}".reads(h.mode, h.kinds, m.kind, m.message_id)
        else m.target = h.id
    end
) as s;

insert into "{schema}".version (version) values (2);
