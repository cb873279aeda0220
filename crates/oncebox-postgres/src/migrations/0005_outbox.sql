-- The outbox: messages that a transaction publishes. The mover takes them to the log after the commit.

-- Rows live for milliseconds. `xid` is the top-level transaction, and `id` the order in which messages were published. The checks
-- are the limits of the log: one row that the log refuses would stop the whole outbox.
create table "{schema}".outbox (
    xid xid8 not null default pg_current_xact_id(),
    id bigint generated always as identity,
    message_id uuid not null,
    kind text collate "C" not null
        check (octet_length(kind) between 1 and 200 and kind !~ '[[:cntrl:]]' and kind not like '@%'),
    key bytea check (octet_length(key) between 1 and 65536),  -- null: the id is the key
    fingerprint bigint,                  -- of the body; null where another language published
    order_by bytea check (octet_length(order_by) <= 65536),
    headers text check (octet_length(headers) <= 1048576 and json_typeof(headers::json) = 'array'),  -- [[name, value], …]
    body bytea not null check (octet_length(body) <= 268435456),
    occurred_at timestamptz check (occurred_at >= '0001-01-01 00:00:00+00' and occurred_at < '10000-01-01 00:00:00+00'),
    due_at timestamptz check (due_at >= '0001-01-01 00:00:00+00' and due_at < '10000-01-01 00:00:00+00'),
    captured_at timestamptz not null default clock_timestamp() check (isfinite(captured_at)),
    primary key (xid, id)
) with (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

-- A backlog is read in the order of its numbers.
create index outbox_id on "{schema}".outbox (id);

-- The row that the one mover at work has locked.
create table "{schema}".mover (only_one boolean primary key default true check (only_one));
insert into "{schema}".mover default values;

-- The lane of an ordering key: the same rule as in the library.
create function "{schema}".lane_of(order_by bytea, lanes integer) returns integer
language sql immutable strict parallel safe
as $$
    select mod(
        n.signed::numeric + case when n.signed < 0 then 18446744073709551616 else 0 end, lanes
    )::integer
    from (select ('x' || encode(substring(sha256(order_by) for 8), 'hex'))::bit(64)::bigint as signed) as n
$$;

-- A UUID of version 7: the time in milliseconds, then random bits.
create function "{schema}".new_message_id() returns uuid
language sql volatile
as $$
    select (
        substring(m.ms for 8) || '-' || substring(m.ms from 9) || '-7' || substring(r.hex for 3)
        || '-' || substring('89ab' from (get_byte(decode(substring(r.hex from 4 for 2), 'hex'), 0) & 3) + 1 for 1)
        || substring(r.hex from 6 for 3) || '-' || substring(r.hex from 9 for 12)
    )::uuid
    from (select lpad(to_hex(floor(extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') as ms) as m
    cross join (select replace(gen_random_uuid()::text, '-', '') as hex) as g
    cross join lateral (select substring(g.hex for 12) || substring(g.hex from 21) as hex) as r
$$;

-- Publishes a message in the caller's transaction, from any language. It needs the right to insert into the outbox only. Returns
-- the id of the message.
create function "{schema}".publish(
    kind text, body bytea, key text default null, order_by text default null, headers jsonb default null,
    due_at timestamptz default null
) returns uuid
language plpgsql
as $$
#variable_conflict use_variable
declare
    message_id uuid := "{schema}".new_message_id();
    pairs text;
begin
    if kind is null or octet_length(kind) not between 1 and 200 or kind ~ '[[:cntrl:]]' or kind like '@%' then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = format('oncebox: invalid kind %L: use 1 to 200 bytes of printable text that does not start with @', kind);
    end if;
    if body is null then
        raise exception using
            errcode = 'invalid_parameter_value', message = 'oncebox: the body is null: pass an empty one if there is none';
    end if;
    if octet_length(key) not between 1 and 65536 or octet_length(order_by) > 65536 then
        raise exception using
            errcode = 'invalid_parameter_value',
            message = 'oncebox: a key may have 1 to 65536 bytes, and an ordering key 65536: use a digest of longer ones';
    end if;
    if headers is not null then
        select jsonb_agg(jsonb_build_array(h.key, h.value))::text into pairs
        from jsonb_each_text(headers) as h
        where h.value is not null;
    end if;
    insert into "{schema}".outbox (message_id, kind, key, order_by, headers, body, due_at)
    values (
        message_id, kind, convert_to(key, 'UTF8'), convert_to(order_by, 'UTF8'), pairs, body, due_at
    );
    return message_id;
end
$$;

-- The same for a body that is JSON.
create function "{schema}".publish(
    kind text, body jsonb, key text default null, order_by text default null, headers jsonb default null,
    due_at timestamptz default null
) returns uuid
language sql volatile
as $$ select "{schema}".publish($1, convert_to($2::text, 'UTF8'), $3, $4, $5, $6) $$;

-- Moves committed messages to the log, in the order of their ids. It reads the rows of two sets of transactions: those from
-- `from_xid` on, and those of `in_progress`, which were open at the last look. After a failover the history differs, and it reads
-- all rows. Returns no row if another mover is at work. The returned window is that of the snapshot that chose the messages; it
-- holds only if all of them were moved.
create function "{schema}".move_outbox(
    seen_history bigint, from_xid text, in_progress text[], max_messages integer, max_bytes bigint, offset_ms bigint
) returns table (moved bigint, is_complete boolean, history bigint, next_xid text, next_in_progress text[])
language plpgsql
set enable_seqscan = off
set enable_bitmapscan = off
set enable_mergejoin = off
set enable_hashjoin = off
set plan_cache_mode = force_generic_plan
set jit = off -- tables of one row are scanned all the same, at a price that would have it compiled, for a second each time
as $$
#variable_conflict use_variable
declare
    early xid8[] := in_progress::xid8[];
    since xid8 := from_xid::xid8;
    at_all boolean;
    seen pg_snapshot;
    has_any boolean;
    lane_count integer;
    xids xid8[];
    ids bigint[];
    lanes integer[];
    found_count bigint;
    batch record;
    now_at timestamptz := clock_timestamp() + offset_ms * interval '1 ms';
begin
    -- A standby answers too, and knows no transactions that are in progress.
    if pg_is_in_recovery() then
        raise exception using
            errcode = 'read_only_sql_transaction', message = 'oncebox: a standby cannot move the outbox';
    end if;
    history := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
    at_all := history <> seen_history or since = '0'::xid8;

    -- First without a lock: an idle mover writes nothing.
    select
        pg_current_snapshot(),
        exists (select from "{schema}".outbox o where at_all)
        or exists (select from "{schema}".outbox o where o.xid >= since)
        or exists (select from unnest(early) as e(xid) join "{schema}".outbox o on o.xid = e.xid)
    into seen, has_any;
    if has_any then
        perform from "{schema}".mover m for update skip locked;
        if not found then
            if not exists (select from "{schema}".mover) then
                raise exception using
                    errcode = 'invalid_parameter_value',
                    message = 'oncebox: the table mover is empty: run insert into mover default values';
            end if;
            return;
        end if;
        select l.lanes into lane_count from "{schema}".layout l;
        if not found then
            raise exception using
                errcode = 'invalid_parameter_value',
                message = 'oncebox: there are no lanes; build an outbox or an inbox with a log once, which makes them';
        end if;

        -- A statement of its own, which begins after the lock: it sees what the mover before this one has moved. One more than
        -- the limit, to know whether there is more.
        select
            pg_current_snapshot(), max(c.found_count), array_agg(c.xid order by c.id), array_agg(c.id order by c.id),
            array_agg(distinct c.lane order by c.lane)
        into seen, found_count, xids, ids, lanes
        from (
            select
                f.xid, f.id, count(*) over () as found_count, row_number() over (order by f.id) as n,
                case when o.order_by is null then mod(f.id / 256, lane_count::bigint)::integer
                    else "{schema}".lane_of(o.order_by, lane_count) end as lane,
                sum(
                    octet_length(o.body) + coalesce(octet_length(o.headers), 0) + coalesce(octet_length(o.key), 0)
                    + coalesce(octet_length(o.order_by), 0)
                ) over (order by f.id rows between unbounded preceding and 1 preceding) as bytes_before
            from (
                select u.xid, u.id
                from (
                    (select o.xid, o.id from "{schema}".outbox o where at_all order by o.id limit max_messages + 1)
                    union all
                    select o.xid, o.id from "{schema}".outbox o where not at_all and o.xid >= since
                    union all
                    select o.xid, o.id from unnest(early) as e(xid) join "{schema}".outbox o on o.xid = e.xid
                    where not at_all
                ) as u
                order by u.id
                limit max_messages + 1
            ) as f
            join "{schema}".outbox o on o.xid = f.xid and o.id = f.id
        ) as c
        where c.n <= max_messages and coalesce(c.bytes_before, 0) < max_bytes;
    end if;
    if ids is null then
        moved := 0;
        is_complete := true;
    else
        -- All lanes are locked before the first marker is inserted, in one order: this cannot deadlock with an accept, which
        -- locks one lane. New kinds are inserted in one order too.
        perform from "{schema}".lane l where l.handler = 0 and l.lane = any (lanes) order by l.lane for update;
        insert into "{schema}".kind (kind, first_seen_at)
        select distinct o.kind, now_at
        from unnest(xids, ids) as c(xid, id)
        join "{schema}".outbox o on o.xid = c.xid and o.id = c.id
        order by o.kind
        on conflict do nothing;
        for batch in
            with gone as (
                delete from "{schema}".outbox o
                using unnest(xids, ids) as c(xid, id)
                where o.xid = c.xid and o.id = c.id
                returning o.*, coalesce(o.key, convert_to(o.message_id::text, 'UTF8')) as known_as
            ), laned as (
                select
                    g.*,
                    case when g.order_by is null then mod(g.id / 256, lane_count::bigint)::integer
                        else "{schema}".lane_of(g.order_by, lane_count) end as lane,
                    row_number() over (partition by g.kind, g.known_as order by g.id) as copy
                from gone g
            )
            select
                l.lane,
                array_agg(l.kind order by l.id) as kinds,
                array_agg("{schema}".stored_key(l.known_as) order by l.id) as keys,
                array_agg(case when octet_length(l.known_as) > 512 then l.known_as end order by l.id) as long_keys,
                array_agg(l.fingerprint order by l.id) as fingerprints,
                array_agg(l.order_by order by l.id) as orders,
                array_agg(l.headers order by l.id) as headers,
                array_agg(l.body order by l.id) as bodies,
                array_agg(floor(extract(epoch from l.occurred_at) * 1000)::int8 order by l.id) as occurred_ms,
                array_agg(floor(extract(epoch from l.due_at) * 1000)::int8 order by l.id) as due_ms,
                array_agg(
                    greatest(floor(extract(epoch from clock_timestamp() - l.captured_at) * 1000)::int8, 0) order by l.id
                ) as waited_ms,
                array_agg(l.message_id order by l.id) as message_ids
            from laned l
            where l.copy = 1
            group by l.lane
            order by l.lane
        loop
            perform "{schema}".append(
                false, batch.lane, batch.kinds, batch.keys, batch.long_keys, batch.fingerprints, batch.orders,
                batch.headers, batch.bodies, batch.occurred_ms, batch.due_ms, batch.waited_ms, offset_ms, '{}',
                batch.message_ids
            );
        end loop;
        moved := cardinality(ids);
        is_complete := moved = found_count;
    end if;
    next_xid := pg_snapshot_xmax(seen)::text;
    next_in_progress := array(select x::text from pg_snapshot_xip(seen) as x);
    return next;
end
$$;

insert into "{schema}".version (version) values (5);
