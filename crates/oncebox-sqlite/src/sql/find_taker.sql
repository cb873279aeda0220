-- Whether a handler's tasks are ordered; no row if the handler is gone or paused, or takes other kinds than ?2 by now. What
-- is set apart from inline is for this handler alone: its kinds may have changed meanwhile.
select h.ordered from oncebox_handler h
where h.id = ?1 and h.state = 'active' and (h.kinds = ?2 or h.mode = 'spill')
  and h.mode = ?3 and h.ordered is ?4
