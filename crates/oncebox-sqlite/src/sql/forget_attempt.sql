-- Takes back the note that a message is about to run.
delete from oncebox_attempting where handler = ?1 and lane = ?2 and pos = ?3
