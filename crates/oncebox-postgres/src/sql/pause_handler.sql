-- Stops a handler or lets it go on, with its entry in the audit.
with changed as (
    update "{schema}".handler set state = case when $2 then 'paused' else 'active' end
    where name = $1 and state = case when $2 then 'active' else 'paused' end
    returning name
)
insert into "{schema}".audit (at, operator, action, handler)
select clock_timestamp() + $4::int8 * interval '1 ms', $3, case when $2 then 'pause' else 'resume' end, c.name
from changed c
