-- The log: messages in lanes, the progress of handlers, tasks and dead letters.

-- Accept is a claim too, by the reserved handler '@accept'; its marker points to the message. SQLite cannot
-- alter a check: the table is built anew.
create table oncebox_marker_anew (
    handler text not null,
    kind text not null,
    key blob not null,                   -- a tag byte, then the key or its digest
    long_key blob,                       -- the whole key where `key` is a digest
    fingerprint integer,                 -- of the body; null where there was none to compare
    state text not null check (state in ('done', 'spilled', 'accepted')),
    received_at integer not null,
    processed_at integer not null,
    lane integer,
    pos integer,
    primary key (handler, kind, key)
) strict;

insert into oncebox_marker_anew (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
select handler, kind, key, long_key, fingerprint, state, received_at, processed_at from oncebox_marker;

drop table oncebox_marker;
alter table oncebox_marker_anew rename to oncebox_marker;

-- What sweeps walk along.
create index oncebox_marker_processed on oncebox_marker (processed_at) where state = 'done';
create index oncebox_marker_accepted on oncebox_marker (processed_at) where state = 'accepted';

-- What is fixed when the log is made; one row.
create table oncebox_layout (
    only_one integer primary key default 1 check (only_one = 1),
    lanes integer not null check (lanes between 1 and 1024),
    hash text not null                   -- how an ordering key becomes a lane
) strict;

-- Every handler that ever was, and every name that one had before. Names are never given twice.
create table oncebox_handler (
    id integer primary key,
    name text not null unique,
    origin text not null,                -- its first name, which never changes: markers are made with it
    kinds text not null,                 -- JSON: a list of texts
    mode text not null check (mode in ('inline', 'spill', 'stored', 'mixed', 'relay')),
    ordered text check (ordered in ('hold', 'skip')), -- what a dead letter does to its key; null: not ordered
    state text not null check (state in ('active', 'paused', 'removed', 'renamed')),
    renamed_to integer check ((renamed_to is not null) = (state = 'renamed')), -- who had this name before
    registered_at integer not null,
    keep_ms integer                      -- of a relay: how long messages stay for a replay
) strict;

-- Every kind of which a message was accepted.
create table oncebox_kind (
    kind text primary key,
    first_seen_at integer not null
) strict, without rowid;

-- The messages. Appended by the one writer, so that positions have no gaps and appear in their order; never
-- updated. Bodies can be long: with a row id, the index on the positions stays flat.
create table oncebox_message (
    lane integer not null,
    pos integer not null,
    kind text not null,
    key blob,                            -- null: accepted without dedup
    long_key blob,
    order_by blob,
    target integer,                      -- only for this handler; null for all of its kind
    headers text,                        -- JSON: a list of [name, value]
    occurred_at integer,
    due_at integer,
    received_at integer not null,
    message_id blob,                     -- of a published message; null: accepted
    body blob not null,                  -- last: what is in front is read without it
    primary key (lane, pos)
) strict;

-- How far a handler has come in a lane: the highest (epoch, pos) counts. Appended, never updated.
create table oncebox_progress (
    handler integer not null,
    lane integer not null,
    epoch integer not null,
    pos integer not null,
    at integer not null,
    primary key (handler, lane, epoch, pos)
) strict, without rowid;

-- What operators have handlers run on again: the messages of the epoch between two positions.
create table oncebox_replay (
    handler integer not null,
    lane integer not null,
    epoch integer not null,
    after integer not null,
    until integer not null,
    primary key (handler, lane, epoch)
) strict, without rowid;

-- Tasks: messages of one handler that wait for another attempt, for their time, or behind their ordering key, or
-- running outside of a transaction.
create table oncebox_task (
    handler integer not null,
    lane integer not null,
    pos integer not null,
    order_by blob,
    failures integer not null,
    due_at integer not null,
    owner blob,                          -- the process that runs it outside of a transaction
    fence integer,
    error text,                          -- the last one
    attempts text not null default '[]', -- JSON: a list of {"attempt", "at", "error"}
    body blob,                           -- an operator's correction
    scheduled integer not null default 0, -- whether it waits for its time, and holds back nobody before that
    crashes integer not null default 0,  -- processes that died while they ran it outside of a transaction
    primary key (handler, lane, pos)
) strict;
create index oncebox_task_due on oncebox_task (handler, lane, due_at, pos) where owner is null;
create index oncebox_task_order on oncebox_task (handler, lane, order_by, pos) where order_by is not null;
create index oncebox_task_free on oncebox_task (handler, lane, due_at, pos)
    where owner is null and order_by is null;
create index oncebox_task_owner on oncebox_task (owner) where owner is not null;
create index oncebox_task_message on oncebox_task (lane, pos);

-- Tasks that used up their attempts. They leave by an operator's action only.
create table oncebox_dead (
    handler integer not null,
    lane integer not null,
    pos integer not null,
    order_by blob,
    error text not null,
    attempts text not null,
    body blob,
    died_at integer not null,
    primary key (handler, lane, pos)
) strict;
create index oncebox_dead_died on oncebox_dead (died_at);
create index oncebox_dead_message on oncebox_dead (lane, pos);
create index oncebox_dead_order on oncebox_dead (handler, lane, order_by, pos) where order_by is not null;

-- The processes at work.
create table oncebox_process (
    id blob primary key,
    name text not null,
    handlers text not null,              -- JSON: a list of numbers
    lease_ms integer not null,           -- silent for longer than that, it is taken for dead
    in_flight integer not null,            -- the most messages that it has in hand in one lane
    beats integer not null default 0,
    heartbeat integer not null,
    started_at integer not null
) strict;

-- The newest fence; one row. Fences only grow.
create table oncebox_fence (
    only_one integer primary key default 1 check (only_one = 1),
    newest integer not null
) strict;
insert into oncebox_fence (newest) values (0);

-- Where a process has died at work: so many messages run one by one.
create table oncebox_careful (
    handler integer not null,
    lane integer not null,
    messages_left integer not null,
    primary key (handler, lane)
) strict, without rowid;

-- Messages that are about to run there, and how many deaths are put down to each.
create table oncebox_attempting (
    handler integer not null,
    lane integer not null,
    pos integer not null,
    crashes integer not null,
    process blob not null,
    primary key (handler, lane, pos)
) strict, without rowid;

-- What operators did.
create table oncebox_audit (
    id integer primary key,
    at integer not null,
    operator text not null,
    action text not null,
    handler text not null,
    lane integer,
    pos integer,
    detail text
) strict;

-- The log in the shape of an inbox table: one row for each message, processed when all its handlers are done. One
-- that is for one handler alone is done when it has no task and no dead letter.
-- A key is text where it is UTF-8 (its characters, put together again, are the same), else in hexadecimal.
create view oncebox_inbox_message as
select
    case when s.key is null then null
        when instr(s.key, x'00') = 0 and s.key = cast((
            with recursive letter(n) as (
                select 1 union all select n + 1 from letter where n < length(cast(s.key as text))
            )
            select coalesce(group_concat(char(unicode(substr(cast(s.key as text), n, 1))), ''), '')
            from letter
        ) as blob) then cast(s.key as text)
        else '0x' || lower(hex(s.key))
    end as id,
    s.kind as type,
    case when instr(s.body, x'00') = 0 and json_valid(cast(s.body as text)) then cast(s.body as text)
    end as content,
    strftime('%Y-%m-%dT%H:%M:%fZ', s.received_at / 1000.0, 'unixepoch') as received_on_utc,
    case when s.handlers > 0 and s.handlers = s.done
        then strftime('%Y-%m-%dT%H:%M:%fZ', s.last_done_at / 1000.0, 'unixepoch')
    end as processed_on_utc,
    s.error, s.lane, s.pos
from (
    select
        m.lane, m.pos, m.kind, coalesce(m.long_key, substr(m.key, 2)) as key, m.received_at, m.body,
        count(h.id) as handlers,
        sum((m.target is not null or p.at is not null) and t.pos is null and d.pos is null) as done,
        max(case when m.target is null then p.at else coalesce(k.processed_at, m.received_at) end) as last_done_at,
        max(coalesce(d.error, t.error)) as error
    from oncebox_message m
    left join oncebox_handler h
        on h.state in ('active', 'paused') and (
            m.target = h.id
            or m.target is null and case
                when h.mode in ('stored', 'mixed') then exists (select 1 from json_each(h.kinds) k where k.value = m.kind)
                when h.mode = 'relay' and m.message_id is not null
                then exists (select 1 from json_each(h.kinds) k where m.kind glob k.value)
            end
        )
    left join oncebox_marker k
        on m.target is not null and k.handler = h.origin and k.kind = m.kind and k.key = m.key
    left join oncebox_progress p on (p.handler, p.lane, p.epoch, p.pos) = (
        select p.handler, p.lane, p.epoch, p.pos from oncebox_progress p
        where p.handler = h.id and p.lane = m.lane and p.pos >= m.pos and p.epoch = (
            select e.epoch from oncebox_progress e
            where e.handler = h.id and e.lane = m.lane
            order by e.epoch desc limit 1
        )
        order by p.pos limit 1
    )
    left join oncebox_task t on t.handler = h.id and t.lane = m.lane and t.pos = m.pos
    left join oncebox_dead d on d.handler = h.id and d.lane = m.lane and d.pos = m.pos
    group by m.lane, m.pos
) as s;

insert into oncebox_version (version, applied_at) values (2, cast((julianday('now') - 2440587.5) * 86400000 as integer));
