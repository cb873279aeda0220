-- Takes tasks of a handler and lane out of the table, by their positions, a JSON array.
delete from oncebox_task where handler = ?1 and lane = ?2 and pos in (select value from json_each(?3))
