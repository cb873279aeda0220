-- Relays: handlers that send published messages elsewhere, outside of transactions.

comment on column "{schema}".message.message_id is 'the id that a published message has for every receiver';

-- Operators look for a published message by its id.
create index message_id on "{schema}".message (message_id) where message_id is not null;

-- Whether a process has an outbox, and so a mover.
alter table "{schema}".process add column moves boolean not null default false;

-- A relay leases a lane to one process. `process` is null where no lease is held; each lease has a newer fence.
alter table "{schema}".lane add column process uuid;
alter table "{schema}".lane add column fence bigint;

-- Reads the next messages of a leased lane, behind `after` or behind the progress. It locks nothing. No row means that the lease has
-- ended or the relay has changed; a row without a position that there is no message for it.
create function "{schema}".read_range(
    taker integer, taken integer, held_fence bigint, kinds text[], ordered text, after bigint, max_messages integer,
    max_positions bigint, max_bytes bigint, max_tasks integer, offset_ms bigint
) returns table (
    epoch integer, since bigint, looked bigint, head bigint,
    pos bigint, kind text, key bytea, long_key bytea, order_by bytea, headers text, body bytea,
    occurred_ms bigint, due_ms bigint, due_in_ms bigint, waited_ms bigint, held boolean, replay boolean, message_id uuid
)
language plpgsql stable
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
    replay_after bigint;
    replay_until bigint;
    has_exceptions boolean;
    patterns text[] := "{schema}".patterns(kinds);
    now_at timestamptz := clock_timestamp() + offset_ms * interval '1 ms';
begin
    perform from "{schema}".lane l
    join "{schema}".handler h on h.id = l.handler
    where l.handler = taker and l.lane = taken and l.fence = held_fence and l.process is not null
      and h.state = 'active' and h.mode = 'relay' and h.kinds = read_range.kinds
      and h.ordered is not distinct from read_range.ordered;
    if not found then return; end if;
    select p.epoch, p.pos into my_epoch, my_pos from "{schema}".progress p
    where p.handler = taker and p.lane = taken
    order by p.epoch desc, p.pos desc
    limit 1;
    if not found then return; end if;
    my_pos := greatest(my_pos, after);
    if my_epoch > 0 then
        select r.after, r.until into replay_after, replay_until from "{schema}".replay r
        where r.handler = taker and r.lane = taken and r.epoch = my_epoch;
    end if;
    select m.pos into newest from "{schema}".message m where m.lane = taken order by m.pos desc limit 1;
    newest := greatest(coalesce(newest, 0), my_pos);
    last_pos := least(newest, my_pos + max_positions);
    has_exceptions := ordered is not null and (
        exists (select from "{schema}".task t where t.handler = taker and t.lane = taken)
        or exists (select from "{schema}".dead d where d.handler = taker and d.lane = taken)
    );
    if max_tasks is not null and (
        select count(*) from (
            select from "{schema}".task t
            where t.handler = taker and t.lane = taken and (t.failures > 0 or t.owner is not null)
            limit max_tasks
        ) as open
    ) >= max_tasks then
        last_pos := my_pos;
    end if;
    epoch := my_epoch;
    since := my_pos;
    looked := last_pos;
    head := newest;
    return query
    select
        my_epoch, my_pos, last_pos, newest,
        m.pos, m.kind, m.key, m.long_key, m.order_by, m.headers, m.body,
        (date_part('epoch', m.occurred_at) * 1000)::int8,
        (date_part('epoch', m.due_at) * 1000)::int8,
        greatest((date_part('epoch', m.due_at - now_at) * 1000)::int8, 0),
        greatest((date_part('epoch', now_at - m.received_at) * 1000)::int8, 0),
        has_exceptions and m.order_by is not null
            and "{schema}".is_held(taker, taken, m.order_by, m.pos, now_at, ordered = 'hold'),
        coalesce(m.pos > replay_after and m.pos <= replay_until, false),
        m.message_id
    from (
        select m.*, sum(octet_length(m.body)) over (
            order by m.pos rows between unbounded preceding and 1 preceding
        ) as bytes_before
        from (
            select m.* from "{schema}".message m
            where m.lane = taken and m.pos > my_pos and m.pos <= last_pos and m.target is null
              and m.message_id is not null and m.kind like any (patterns)
            order by m.pos
            limit max_messages
        ) as m
    ) as m
    where m.bytes_before is null or m.bytes_before < max_bytes
    order by m.pos;
    if not found then return next; end if;
end
$$;

insert into "{schema}".version (version) values (6);
