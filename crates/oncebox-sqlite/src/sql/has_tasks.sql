-- Whether a handler is there that can have tasks.
select 1 from oncebox_handler where id = ?1 and state in ('active', 'paused') and mode <> 'inline'
