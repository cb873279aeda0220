-- Marks for a handler what it took from the log so far: the keys that were accepted of its kinds, except those that still
-- wait. One that was accepted elsewhere has no place, and is done.
insert into oncebox_marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
select
    s.origin, s.kind, s.key, s.long_key, s.fingerprint,
    case when s.is_set_apart then 'spilled' else 'done' end,
    s.received_at, cast(unixepoch('subsec') * 1000 as integer) + ?2
from (
    select
        h.origin, a.kind, a.key, a.long_key, a.fingerprint, a.received_at, a.pos,
        exists (select 1 from oncebox_task t where t.handler = h.id and t.lane = a.lane and t.pos = a.pos)
        or exists (select 1 from oncebox_dead d where d.handler = h.id and d.lane = a.lane and d.pos = a.pos)
        as is_set_apart,
        -- What is gone over again was passed before.
        (
            select max(p.pos, coalesce(r.until, 0)) from oncebox_progress p
            left join oncebox_replay r on r.handler = p.handler and r.lane = p.lane and r.epoch = p.epoch
            where p.handler = h.id and p.lane = a.lane
            order by p.epoch desc, p.pos desc limit 1
        ) as reached
    from oncebox_handler h
    cross join json_each(h.kinds) k
    cross join oncebox_marker a on a.handler = '@accept' and a.kind = k.value
    where h.id = ?1
) as s
where s.pos is null or s.is_set_apart or s.pos <= s.reached
on conflict do nothing
