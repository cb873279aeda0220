-- A message that process ?4 has noted did not run after all. Those who died of it before are still counted, by a note of nobody.
update oncebox_attempting set crashes = crashes - 1, process = zeroblob(16)
where handler = ?1 and lane = ?2 and pos = ?3 and process = ?4
