-- Markers, results and live time: the inline inbox.

create table oncebox_version (
    version integer primary key,
    applied_at integer not null          -- milliseconds since 1970, as every time here
) strict;

-- One row proves that a handler took effect for a message.
create table oncebox_marker (
    handler text not null,
    kind text not null,
    key blob not null,                   -- a tag byte, then the key or its digest
    long_key blob,                       -- the whole key where `key` is a digest
    fingerprint integer,                 -- of the body; null where there was none to compare
    state text not null check (state in ('done', 'spilled')),
    received_at integer not null,
    processed_at integer not null,
    primary key (handler, kind, key)
) strict;

-- What a sweep walks along.
create index oncebox_marker_processed on oncebox_marker (processed_at) where state = 'done';

-- Results that duplicates are given; apart from the markers, which stay small.
create table oncebox_result (
    handler text not null,
    kind text not null,
    key blob not null,
    body blob not null,
    primary key (handler, kind, key)
) strict;

-- Stretches of time with a live process: only these count as retention.
create table oncebox_live (
    from_ms integer primary key,
    until_ms integer not null
) strict;

insert into oncebox_version (version, applied_at) values (1, cast((julianday('now') - 2440587.5) * 86400000 as integer));
