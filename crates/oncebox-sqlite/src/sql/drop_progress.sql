-- Forgets how far a handler has come.
delete from oncebox_progress where handler = ?1
