-- What a handler has passed in the log gets its own markers, so that copies that come inline are known: done, or known and not
-- done where there is a task or a dead letter. What still waits gets none.
insert into "{schema}".marker (handler, kind, key, long_key, fingerprint, state, received_at, processed_at)
select
    h.origin, a.kind, a.key, a.long_key, a.fingerprint,
    case when t.pos is not null or d.pos is not null then 'spilled' else 'done' end,
    a.received_at, clock_timestamp() + $2::int8 * interval '1 ms'
from "{schema}".handler h
join "{schema}".marker a on a.handler = '@accept' and a.kind = any (h.kinds)
left join lateral (
    select p.epoch, p.pos from "{schema}".progress p
    where p.handler = h.id and p.lane = a.lane
    order by p.epoch desc, p.pos desc limit 1
) as p on true
-- What is gone over again was passed before.
left join "{schema}".replay r on r.handler = h.id and r.lane = a.lane and r.epoch = p.epoch
left join "{schema}".task t on (t.handler, t.lane, t.pos) = (h.id, a.lane, a.pos)
left join "{schema}".dead d on (d.handler, d.lane, d.pos) = (h.id, a.lane, a.pos)
where h.id = $1 and (a.pos is null or a.pos <= greatest(p.pos, r.until))
order by a.kind collate "C", a.key
on conflict do nothing
