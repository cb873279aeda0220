-- Removes a handler with all that waits for it; its name stays. The lock rows go last, when nobody works there any more. Markers
-- of what was set apart count as done, so that they are swept.
with removed as (
    update "{schema}".handler set state = 'removed'
    where name = $1 and state in ('active', 'paused') returning id, name, origin
), lanes as (
    delete from "{schema}".lane l using removed r where l.handler = r.id
), progress as (
    delete from "{schema}".progress p using removed r where p.handler = r.id
), replays as (
    delete from "{schema}".replay p using removed r where p.handler = r.id
), care as (
    delete from "{schema}".careful c using removed r where c.handler = r.id
), attempts as (
    delete from "{schema}".attempting a using removed r where a.handler = r.id
), tasks as (
    delete from "{schema}".task t using removed r where t.handler = r.id returning 1
), letters as (
    delete from "{schema}".dead d using removed r where d.handler = r.id returning 1
), markers as (
    update "{schema}".marker m set state = 'done' from removed r where m.handler = r.origin and m.state = 'spilled'
)
insert into "{schema}".audit (at, operator, action, handler, detail)
select
    clock_timestamp() + $3::int8 * interval '1 ms', $2, 'remove', r.name,
    format('%s tasks, %s dead letters', (select count(*) from tasks), (select count(*) from letters))
from removed r
