-- Counts the chosen dead letters as done, where their markers say that they are not.
update oncebox_marker set state = 'done', processed_at = cast(unixepoch('subsec') * 1000 as integer) + ?2
where state = 'spilled' and (handler, kind, key) in (
    select h.origin, m.kind, m.key
    from json_each(?1) as chosen
    cross join oncebox_handler h on h.id = chosen.value ->> 0
    cross join oncebox_message m on m.lane = chosen.value ->> 1 and m.pos = chosen.value ->> 2
)
