-- Takes back all notes of a process.
delete from oncebox_attempting where process = ?1
