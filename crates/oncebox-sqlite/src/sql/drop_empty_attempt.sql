-- Removes a note by which nobody has died.
delete from oncebox_attempting where handler = ?1 and lane = ?2 and pos = ?3 and crashes = 0
