-- When a task was written, by the clock of its writer: a task that was written in the future is recognised.
alter table oncebox_task add column set_at integer not null default 0;
create index oncebox_task_set on oncebox_task (set_at) where owner is null and scheduled = 0;

insert into oncebox_version (version, applied_at) values (3, cast((julianday('now') - 2440587.5) * 86400000 as integer));
