-- Markers, results and live time: the inline inbox.

create schema if not exists "{schema}";

create table "{schema}".version (
    version integer primary key,
    applied_at timestamptz not null default clock_timestamp()
);

-- One row proves that a handler took effect for a message.
create table "{schema}".marker (
    handler text collate "C" not null,
    kind text collate "C" not null,
    key bytea not null,                  -- a tag byte, then the key or its digest
    long_key bytea,                      -- the whole key where `key` is a digest
    fingerprint bigint,                  -- of the body; null where there was none to compare
    state text not null check (state in ('done', 'spilled')),
    received_at timestamptz not null,
    processed_at timestamptz not null,
    primary key (handler, kind, key)
);

-- What a sweep walks along.
create index marker_processed on "{schema}".marker (processed_at) where state = 'done';

-- A handler could run COMMIT itself and go on without a transaction. As long as it runs, the engine's transactions are
-- marked as guarded, and this refuses to commit them. SET CONSTRAINTS fires it early, which is no commit.
create function "{schema}".refuse_commit() returns trigger
language plpgsql
as $$
begin
    if current_setting('oncebox.guarded', true) = 'on' and current_query() !~* 'set\s+constraints' then
        raise exception using
            errcode = 'invalid_transaction_termination',
            message = 'oncebox: a handler must not end the transaction that it was lent';
    end if;
    return null;
end
$$;

create constraint trigger marker_guarded
after insert on "{schema}".marker
deferrable initially deferred
for each row when (current_setting('oncebox.guarded', true) = 'on')
execute function "{schema}".refuse_commit();

-- The last word before a commit: proves that this is the transaction that the engine began. From here on it may commit, and,
-- if it is the engine's last, the session write again. In a transaction that was broken by an error which the handler
-- swallowed, no function runs.
create function "{schema}".guard(transaction_id text, last boolean) returns void
language plpgsql
as $$
begin
    if pg_current_xact_id_if_assigned()::text is distinct from $1 then
        raise exception using
            errcode = 'invalid_transaction_termination',
            message = 'oncebox: a handler has ended the transaction that it was lent';
    end if;
    perform set_config('oncebox.guarded', 'off', true);
    if last then
        perform set_config('default_transaction_read_only', null, false);
    end if;
end
$$;

-- Results that duplicates are given; apart from the markers, which stay small.
create table "{schema}".result (
    handler text collate "C" not null,
    kind text collate "C" not null,
    key bytea not null,
    body bytea not null,
    primary key (handler, kind, key)
);

-- Stretches of time with a live process: only these count as retention.
create table "{schema}".live (
    from_at timestamptz primary key,
    until_at timestamptz not null
);

-- The form in which keys are compared; equal to what the library does.
create function "{schema}".stored_key(key bytea) returns bytea
language sql immutable strict parallel safe
as $$ select case when octet_length($1) <= 512 then '\x00'::bytea || $1 else '\x01'::bytea || sha256($1) end $$;

-- Claims a key inside the caller's transaction, from any language: true means go on, false means done before.
create function "{schema}".claim(handler text, kind text, key bytea) returns boolean
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
        $1, $2, "{schema}".stored_key($3), case when octet_length($3) > 512 then $3 end, 'done',
        clock_timestamp(), clock_timestamp()
    )
    on conflict do nothing;
    return found;
end
$$;

-- The same for a key that is text.
create function "{schema}".claim(handler text, kind text, key text) returns boolean
language sql
as $$ select "{schema}".claim($1, $2, convert_to($3, 'UTF8')) $$;

insert into "{schema}".version (version) values (1);
