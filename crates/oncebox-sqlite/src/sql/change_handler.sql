-- Changes how messages reach a handler, and what dead letters mean for their keys.
update oncebox_handler set kinds = ?2, mode = ?3, ordered = ?4 where id = ?1
