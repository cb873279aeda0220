-- A handler that is not removed, by its name: its number, mode and state.
select id, mode, state from oncebox_handler where name = ?1 and state in ('active', 'paused')
