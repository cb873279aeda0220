-- Where a process has died: how far the handler had come, and which of its tasks was the first that was due. Without any messages left
-- to be careful with, only that is noted.
alter table oncebox_careful add column pos integer;
alter table oncebox_careful add column task_pos integer;

insert into oncebox_version (version, applied_at) values (4, cast((julianday('now') - 2440587.5) * 86400000 as integer));
