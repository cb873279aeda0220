-- Relays: handlers that send published messages elsewhere, outside of transactions. A relay leases a lane to one process. `process` is
-- null where no lease is held; each lease has a newer fence.
create table oncebox_lease (
    handler integer not null,
    lane integer not null,
    process blob,
    fence integer not null,
    primary key (handler, lane)
) strict;

-- Operators look for a published message by its id. Not unique: another program may choose an id twice.
create index oncebox_message_id on oncebox_message (message_id) where message_id is not null;

-- Whether a process has an outbox, and so a mover.
alter table oncebox_process add column moves integer not null default 0;

insert into oncebox_version (version, applied_at) values (6, cast((julianday('now') - 2440587.5) * 86400000 as integer));
