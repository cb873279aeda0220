-- Lets a handler that was removed begin again.
update oncebox_handler set kinds = ?2, mode = ?3, ordered = ?4, state = 'active' where id = ?1
