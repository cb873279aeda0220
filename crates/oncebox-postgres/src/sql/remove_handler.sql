-- Removes a handler with all that waits for it; its name stays. The lock rows go last, when nobody works there any more.
with removed as (
    update "{schema}".handler set state = 'removed' where name = $1 and state <> 'removed' returning id, name
), lanes as (
    delete from "{schema}".lane l using removed r where l.handler = r.id
), progress as (
    delete from "{schema}".progress p using removed r where p.handler = r.id
), tasks as (
    delete from "{schema}".task t using removed r where t.handler = r.id returning 1
), letters as (
    delete from "{schema}".dead d using removed r where d.handler = r.id returning 1
)
insert into "{schema}".audit (at, operator, action, handler, detail)
select
    clock_timestamp() + $3::int8 * interval '1 ms', $2, 'remove', r.name,
    format('%s tasks, %s dead letters', (select count(*) from tasks), (select count(*) from letters))
from removed r
