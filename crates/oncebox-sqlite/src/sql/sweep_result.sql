-- Deletes the result of a swept marker, by primary key.
delete from oncebox_result where handler = ?1 and kind = ?2 and key = ?3
