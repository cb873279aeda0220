-- Transactions, savepoints, and the sessions around them.

-- name: session_settings
-- How the pool has set its sessions: what handlers change of that is set back behind them.
-- Rows: none.
select (jsonb_build_object(
    'session_authorization', current_setting('session_authorization'), 'role', current_setting('role')
) || coalesce((
    select jsonb_build_object('settings', jsonb_object_agg(s.name, s.setting)) from pg_settings s
    where s.source = 'session' and s.name <> 'default_transaction_read_only' and s.name not like 'oncebox.%'
    having count(*) > 0
), '{}'))::text;

-- name: begin
-- Begins a transaction in a session that is read-only outside of it: a handler that runs ROLLBACK cannot write on with
-- no transaction around it. The guard makes the session as it was before, by committing that along with the rest.
-- Rows: none.
begin;
set session default_transaction_read_only = on;
commit;
begin isolation level read committed read write;

-- name: begin_shared
-- Begins a transaction and leaves the session alone, for connections that others use between two transactions. Its statements
-- follow at once: when they do not, their sender is gone, and must not keep its locks. Handlers get their own limit later.
-- Rows: none.
begin isolation level read committed read write;
set local idle_in_transaction_session_timeout = '10s';

-- name: arm
-- Sets the handler's limits where no claim has done so, and reads what the guard compares.
-- Rows: none.
select
    pg_current_xact_id()::text as transaction_id,
    pg_backend_pid() as backend,
    set_config('statement_timeout', $1, true),
    set_config('idle_in_transaction_session_timeout', $2, true);

-- name: guard
-- Proves that this is still the engine's own transaction, whole; from here on it may commit.
-- Rows: none.
select "{schema}".guard($1, true, $2);

-- name: isolate
-- Sets the point to which a failed handler is taken back.
-- Rows: none.
savepoint oncebox_unit;

-- name: keep
-- Keeps what a handler wrote. Constraints that wait for the commit are checked now, while it is known whose they are; the
-- engine's own is not meant. Going back to the inner savepoint leaves all of them as they were.
-- Rows: none.
savepoint oncebox_check;
select set_config('oncebox.proved', 'yes', true);
set constraints all immediate;
rollback to savepoint oncebox_check;
release savepoint oncebox_check;
release savepoint oncebox_unit;

-- name: undo
-- Takes back what a handler wrote.
-- Rows: none.
rollback to savepoint oncebox_unit;
release savepoint oncebox_unit;

-- name: commit
-- Proves that this is still the engine's own transaction, whole, and commits it, all in one message: if the proof fails,
-- nothing of the rest is carried out. The driver believes that it is still in a transaction, and is given one.
-- Rows: none.
select "{schema}".guard('{transaction_id}', true, decode('{session}', 'hex'));
commit;
begin;

-- name: commit_and_begin
-- As commit does, and what the driver is given is the next transaction of the engine.
-- Rows: none.
select "{schema}".guard('{transaction_id}', false, decode('{session}', 'hex'));
commit;
begin isolation level read committed read write;

-- name: finish
-- As commit does, with a handler's progress behind the proof.
-- Rows: none.
select "{schema}".guard('{transaction_id}', true, decode('{session}', 'hex'));
insert into "{schema}".progress (handler, lane, epoch, pos) values ({progress});
commit;
begin;

-- name: finish_and_begin
-- As commit_and_begin does, with a handler's progress behind the proof.
-- Rows: none.
select "{schema}".guard('{transaction_id}', false, decode('{session}', 'hex'));
insert into "{schema}".progress (handler, lane, epoch, pos) values ({progress});
commit;
begin isolation level read committed read write;

-- name: rollback
-- Rolls back and makes the session writable again, with no locks of its own, all in one message, so that no pooler can come between. The reset has
-- a transaction of its own: in that of the last begin it would be rolled back too. The driver believes that it is still in
-- a transaction, and is given one.
-- Rows: none.
rollback;
begin;
reset default_transaction_read_only;
select pg_advisory_unlock_all();
commit;
begin;

-- name: terminate_backend
-- Ends whatever a backend of ours is doing, and the backend with it.
-- Rows: none.
select pg_terminate_backend($1);
