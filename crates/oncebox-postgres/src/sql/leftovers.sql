-- What a handler still has to do: messages ahead of its progress, tasks or dead letters; keys that came inline, which are those that
-- were never accepted; and messages that were done inline while they wait in the log.
select
    exists (
        select from "{schema}".lane l
        cross join lateral (
            select p.pos from "{schema}".progress p
            where p.handler = h.id and p.lane = l.lane
            order by p.epoch desc, p.pos desc limit 1
        ) as p
        join "{schema}".message m on m.lane = l.lane and m.pos > p.pos and m.target is null and m.kind = any (h.kinds)
        where l.handler = h.id
    ) as waiting,
    exists (select from "{schema}".task t where t.handler = h.id)
        or exists (select from "{schema}".dead d where d.handler = h.id) as set_apart,
    exists (
        select from "{schema}".marker m
        where m.handler = h.origin and not exists (
            select from "{schema}".marker a where a.handler = '@accept' and a.kind = m.kind and a.key = m.key
        )
    ) as inline_keys,
    exists (
        select from "{schema}".marker m
        join "{schema}".marker a on a.handler = '@accept' and a.kind = m.kind and a.key = m.key
        where m.handler = h.origin and m.state = 'done' and (
            a.pos > (
                select p.pos from "{schema}".progress p
                where p.handler = h.id and p.lane = a.lane
                order by p.epoch desc, p.pos desc limit 1
            )
            or exists (select from "{schema}".task t where (t.handler, t.lane, t.pos) = (h.id, a.lane, a.pos))
        )
    ) as done_elsewhere
from "{schema}".handler h
where h.id = $1
