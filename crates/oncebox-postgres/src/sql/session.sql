-- How the pool has set its sessions: what handlers change of that is set back behind them.
select (jsonb_build_object(
    'session_authorization', current_setting('session_authorization'), 'role', current_setting('role')
) || coalesce((
    select jsonb_build_object('settings', jsonb_object_agg(s.name, s.setting)) from pg_settings s
    where s.source = 'session' and s.name <> 'default_transaction_read_only' and s.name not like 'oncebox.%'
    having count(*) > 0
), '{}'))::text
