-- The outbox: messages that a transaction publishes. The mover takes them to the log after the commit. The checks are the limits
-- of the log: one row that the log refuses would stop the whole outbox.
create table oncebox_outbox (
    id integer primary key autoincrement,
    message_id text not null check (length(message_id) > 0),
    kind text not null check (
        length(cast(kind as blob)) between 1 and 200 and kind not like '@%'
        and kind not glob ('*[' || char(1) || '-' || char(31) || char(127) || ']*')
    ),
    key blob check (length(key) between 1 and 65536),  -- null: the id is the key
    order_by blob check (length(order_by) <= 65536),
    headers text check (json_type(headers) = 'array'),  -- [[name, value], …]
    body blob not null,
    occurred_at integer check (occurred_at between -62135596800000 and 253402300799999),
    due_at integer check (due_at between -62135596800000 and 253402300799999),
    captured_at integer not null check (captured_at between -62135596800000 and 253402300799999)
) strict;

-- Publishes a message in the caller's transaction, from any language: an insert into this view. Times are milliseconds since 1970,
-- and headers are a JSON object. Functions that older versions of SQLite lack are left out, because the caller's version runs this.
create view oncebox_publish as
select o.message_id, o.kind, o.body, o.key, o.order_by, o.headers, o.due_at from oncebox_outbox o;

create trigger oncebox_publish_insert
instead of insert on oncebox_publish
begin
    select raise(abort, 'oncebox: invalid kind: use 1 to 200 bytes of printable text that does not start with @')
    where new.kind is null or length(cast(new.kind as blob)) not between 1 and 200 or new.kind like '@%'
       or new.kind glob ('*[' || char(1) || '-' || char(31) || char(127) || ']*');
    select raise(abort, 'oncebox: message_id must be a UUID, or null for a new one')
    where new.message_id not like '________-____-____-____-____________' or replace(new.message_id, '-', '') glob '*[^0-9a-fA-F]*';
    select raise(abort, 'oncebox: the headers must be a JSON object of names and values')
    where new.headers is not null and json_type(new.headers) <> 'object';
    select raise(abort, 'oncebox: the body is null: pass an empty one if there is none') where new.body is null;
    select raise(abort, 'oncebox: a key may have 1 to 65536 bytes, and an ordering key 65536: use a digest of longer ones')
    where length(cast(new.key as blob)) not between 1 and 65536 or length(cast(new.order_by as blob)) > 65536;
    insert into oncebox_outbox (message_id, kind, key, order_by, headers, body, due_at, captured_at)
    select
        -- A UUID of version 7: the time in milliseconds, then random bits.
        coalesce(new.message_id, lower(printf(
            '%08x-%04x-7%03x-%s%s-%s', n.ms >> 16, n.ms & 65535, random() & 4095, substr('89ab', (random() & 3) + 1, 1),
            substr(hex(randomblob(2)), 2), hex(randomblob(6))
        ))),
        new.kind, cast(new.key as blob), cast(new.order_by as blob),
        case when new.headers is not null then (
            select json_group_array(json_array(h.key, '' || h.value)) from json_each(new.headers) h
            where h.value is not null
        ) end,
        cast(new.body as blob), new.due_at, n.ms
    from (select cast((julianday('now') - 2440587.5) * 86400000 as integer) as ms) n;
end;

insert into oncebox_version (version, applied_at) values (5, cast((julianday('now') - 2440587.5) * 86400000 as integer));
