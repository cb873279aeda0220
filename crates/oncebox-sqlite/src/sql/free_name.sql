-- Frees a name that this very handler had before.
delete from oncebox_handler where name = ?2 and renamed_to = ?1
