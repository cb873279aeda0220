-- Takes back the marker of a unit whose handler failed.
delete from oncebox_marker where handler = ?1 and kind = ?2 and key = ?3
