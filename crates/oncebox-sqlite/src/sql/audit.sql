-- The latest actions, newest first.
select at, operator, action, handler, lane, pos, detail from oncebox_audit order by id desc limit ?1
