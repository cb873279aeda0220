-- Nothing that a message or a handler brings along outlives its transaction, or keeps a lane from going on.

-- An index entry has some 2,700 bytes; an ordering key may have 65,536. The index holds the form in which keys are compared.
drop index "{schema}".task_order;
create index task_order on "{schema}".task (handler, lane, "{schema}".stored_key(order_by), pos)
where order_by is not null;
drop index "{schema}".dead_order;
create index dead_order on "{schema}".dead (handler, lane, "{schema}".stored_key(order_by), pos)
where order_by is not null;

-- Whether an earlier message of its ordering key holds a message back: a task, unless it waits for its sender's time; a dead
-- letter, where those hold.
create or replace function "{schema}".is_held(
    taker integer, taken integer, ordering bytea, before bigint, now_at timestamptz, dead_hold boolean
) returns boolean
language sql stable
as $$
    select exists (
        select from "{schema}".task t
        where t.handler = taker and t.lane = taken and t.order_by is not null
          and "{schema}".stored_key(t.order_by) = "{schema}".stored_key(ordering) and t.pos < before
          and not (t.scheduled and t.due_at > now_at)
    ) or (dead_hold and exists (
        select from "{schema}".dead d
        where d.handler = taker and d.lane = taken and d.order_by is not null
          and "{schema}".stored_key(d.order_by) = "{schema}".stored_key(ordering) and d.pos < before
    ))
$$;

-- The first task of every ordering key in a lane that is not waiting for its sender's time, key by key along the index.
create or replace function "{schema}".task_heads(taker integer, taken integer, now_at timestamptz)
returns table (order_by bytea, pos bigint, due_at timestamptz, owner uuid)
language sql stable
as $$
    with recursive key as (
        (
            select "{schema}".stored_key(t.order_by) as stored from "{schema}".task t
            where t.handler = taker and t.lane = taken and t.order_by is not null
            order by "{schema}".stored_key(t.order_by) limit 1
        )
        union all
        select (
            select "{schema}".stored_key(t.order_by) from "{schema}".task t
            where t.handler = taker and t.lane = taken and t.order_by is not null
              and "{schema}".stored_key(t.order_by) > key.stored
            order by "{schema}".stored_key(t.order_by) limit 1
        )
        from key where key.stored is not null
    )
    select head.order_by, head.pos, head.due_at, head.owner
    from key
    cross join lateral (
        select t.order_by, t.pos, t.due_at, t.owner from "{schema}".task t
        where t.handler = taker and t.lane = taken and t.order_by is not null
          and "{schema}".stored_key(t.order_by) = key.stored
          and not (t.scheduled and t.due_at > now_at)
        order by t.pos limit 1
    ) as head
    where key.stored is not null
$$;

-- Takes tasks that are due and not held back, out of the table: those that fail again are put back. Otherwise as take does.
create or replace function "{schema}".take_tasks(
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
                        where t.handler = taker and t.lane = taken and t.order_by is not null
                          and "{schema}".stored_key(t.order_by) = "{schema}".stored_key(h.order_by) and t.pos > h.pos
                          and (t.owner is not null or (t.due_at > now_at and not t.scheduled))
                        order by t.pos limit 1
                    )
                    union all
                    (
                        select d.pos from "{schema}".dead d
                        where d.handler = taker and d.lane = taken and d.order_by is not null
                          and "{schema}".stored_key(d.order_by) = "{schema}".stored_key(h.order_by) and dead_head = 'hold'
                        order by d.pos limit 1
                    )
                ) as s
            ) as stop
            cross join lateral (
                select t.pos from "{schema}".task t
                where t.handler = taker and t.lane = taken and t.order_by is not null
                          and "{schema}".stored_key(t.order_by) = "{schema}".stored_key(h.order_by)
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

-- Where a process has died: how far the handler had come, and which of its tasks was the first that was due. Without any messages left
-- to be careful with, only that is noted.
alter table "{schema}".careful add column pos bigint;
alter table "{schema}".careful add column task_pos bigint;

-- The failed tries of a message with one more, unless there was no error. The first five and the last fifteen are kept, and how many
-- are not: a message that fails for weeks must not become a row of megabytes.
create function "{schema}".add_attempt(attempts jsonb, attempt integer, at timestamptz, error text) returns jsonb
language sql immutable
as $$
    select case when $4 is null then coalesce($1, '[]') else
        case when jsonb_array_length($1) >= 20
            then jsonb_set($1 - 5, '{5,omitted}', to_jsonb(1 + coalesce(($1 -> 5 ->> 'omitted')::int4, 0)))
            else coalesce($1, '[]')
        end
        || jsonb_build_array(jsonb_build_object(
            'attempt', $2, 'at', floor(extract(epoch from $3) * 1000)::int8, 'error', $4
        ))
    end
$$;

-- As long as handlers run, nothing commits: only the guard's proof lets it, which holds for this transaction. A handler can reset
-- settings, but not make up the proof by accident. SET CONSTRAINTS fires this early, which is no commit. It runs for every marker:
-- the comparison with a constant is all that a transaction pays.
create or replace function "{schema}".refuse_commit() returns trigger
language plpgsql
as $$
begin
    if current_setting('oncebox.proved', true) is distinct from 'yes'
        and current_query() !~* 'set\s+constraints'
    then
        raise exception using
            errcode = 'invalid_transaction_termination',
            message = 'oncebox: a handler must not end the transaction that it was lent';
    end if;
    return null;
end
$$;

-- The last word before a commit: proves that this is the transaction that the engine began. In a transaction that was broken by an
-- error which the handler swallowed, no function runs. What handlers have set for the session ends here: the next one finds it as
-- the pool has set it, which is given as JSON, and its locks released. From here on the transaction may commit, and, if it is the
-- engine's last, the session write again.
create function "{schema}".guard(transaction_id text, last boolean, session bytea) returns void
language plpgsql
as $$
declare
    settings jsonb := convert_from($3, 'UTF8');
    each_name text;
    each_value text;
begin
    if pg_current_xact_id_if_assigned()::text is distinct from $1 then
        raise exception using
            errcode = 'invalid_transaction_termination',
            message = 'oncebox: a handler has ended the transaction that it was lent';
    end if;
    reset all;
    if current_setting('session_authorization') <> settings ->> 'session_authorization' then
        perform set_config('session_authorization', settings ->> 'session_authorization', false);
    end if;
    if current_setting('role') <> settings ->> 'role' then
        perform set_config('role', settings ->> 'role', false);
    end if;
    if settings ? 'settings' then
        for each_name, each_value in select s.key, s.value from jsonb_each_text(settings -> 'settings') as s loop
            perform set_config(each_name, each_value, false);
        end loop;
    end if;
    perform pg_advisory_unlock_all(), set_config('oncebox.proved', 'yes', true);
    if not last then
        perform set_config('default_transaction_read_only', 'on', false);
    end if;
end
$$;

-- The same for programs of the version before, which leave the session as it is.
create or replace function "{schema}".guard(transaction_id text, last boolean) returns void
language plpgsql
as $$
begin
    if pg_current_xact_id_if_assigned()::text is distinct from $1 then
        raise exception using
            errcode = 'invalid_transaction_termination',
            message = 'oncebox: a handler has ended the transaction that it was lent';
    end if;
    perform set_config('oncebox.proved', 'yes', true), set_config('oncebox.guarded', 'off', true);
    if last then
        perform set_config('default_transaction_read_only', null, false);
    end if;
end
$$;

insert into "{schema}".version (version) values (4);
