-- Drops the tasks of handler ?1 in lane ?2 behind position ?3, except those that are for this handler alone.
delete from oncebox_task
where handler = ?1 and lane = ?2 and pos > ?3
  and (select m.target from oncebox_message m where m.lane = ?2 and m.pos = oncebox_task.pos) is null
